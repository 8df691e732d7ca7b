"""Loops in place of repeated statements."""

from __future__ import annotations

import re

from soft_switch.compiler.reroll import reroll


def unrolled(lines: list[str]) -> list[str]:
    """What the loops of `reroll` stand for."""
    result: list[str] = []
    body: list[str] = []
    times = 0
    for line in lines:
        head = re.fullmatch(r"(\s*)for \(unsigned n = 0; n < (\d+)u; n\+\+\) {", line)
        if head:
            indent, times, body = head[1], int(head[2]), []
        elif times and line == indent + "}":
            for n in range(times):
                result += [_at(text[4:], n) for text in body]
            times = 0
        else:
            (body if times else result).append(line)
    return result


def _at(text: str, n: int) -> str:
    def value(found: re.Match[str]) -> str:
        return str(int(found[1]) + int(found[2] or 1) * n)

    return re.sub(r"(\d+) \+ (?:(\d+) \* )?n\b", value, text)


def test_what_differs_in_indices_becomes_a_loop() -> None:
    lines = (
        ["    {"]
        + [f"        store_be_wide<256>(q + {48 + 256 * i}, p.s1[{i}].f0);" for i in range(9)]
        + ["    }"]
    )
    made = reroll(lines)
    assert len(made) == 5
    assert "q + 48 + 256 * n, p.s1[0 + n].f0" in made[2]
    assert unrolled(made) == lines


def test_blocks_of_several_lines() -> None:
    lines = [
        line
        for i in range(6)
        for line in (
            "    {",
            f"        if (p.v[{17 + i}]) p.s0[{i}] = p.s1[{i}];",
            f"        p.v[{i}] = p.v[{17 + i}];",
            "    }",
        )
    ]
    made = reroll(lines)
    assert len(made) == 6
    assert unrolled(made) == lines


def test_what_stays() -> None:
    for lines in (
        [f"action{i}(g, p, c, nullptr);" for i in range(9)],  # names
        [f"p.kept.x{i} = a[{i}];" for i in range(9)],
        [f"const uint64_t t{i} = a[{i}];" for i in range(9)],  # declarations
        ["const uint64_t t = a[0];"] * 9,
        [f"load<{i}>(q);" for i in range(9)],  # has to be constant
        [f'line.text("[{i}]");' for i in range(9)],
        [f"p.v[{i * i}] = 1;" for i in range(9)],  # grows unevenly
        [f"p.v[{i}] = 1;" for i in range(3)],  # too short
        [f"label{i}:;" for i in range(9)],
        [f"if (p.v[{i}]) {{" for i in range(9)] + ["}"] * 9,
    ):
        assert reroll(lines) == lines


def test_runs_that_end_where_the_step_changes() -> None:
    lines = [f"p.v[{i}] = 1;" for i in (0, 1, 2, 3, 4, 9, 10, 11, 12, 13)]
    made = reroll(lines)
    assert unrolled(made) == lines
    assert len(made) == 6
