"""Frames of any kind for the generated code of any program, under sanitizers.

A program's C++ is compiled together with the engine and `harness.cpp`, once with AddressSanitizer and
UndefinedBehaviorSanitizer. Its tables are filled as a recorded data plane was (`recording`), and it is fed
sequences of frames: well-formed ones of the program (`packets`), mutated with or without coverage feedback.
State stays from sequence to sequence, as in a switch that runs.

    python -m tests.soft_switch.fuzz leaf spine any.json --frames 1000000 [--seed N] [--driver libfuzzer]
"""
