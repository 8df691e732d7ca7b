"""The prompt of a running cluster: p4reduce's own commands, and Mininet's command line."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from mininet.cli import CLI
from mininet.log import setLogLevel

from p4reduce.cli.app import Commands
from p4reduce.cli.failing import guarded
from p4reduce.cli.output import complain, say
from topologies.errors import TopologyError
from topologies.fabric import Fabric
from topologies.state import HostKind

_HELP = """\
  show flows|slots|counters|ports     what the switches hold
  show links, link down|up l1:s2      the links between switches
  job create|list|show|delete         jobs at the controller
  allreduce --bytes 32M --verify      a timed all-reduce over all hosts
  replay resnet-50                    a training job's traffic, by several strategies in turns
  fault packets h1 loss, fault list   making it fail on purpose
  top, metrics                        the cluster live; its metrics for Prometheus
  push                                load the P4 program anew
  plan|apply FILE, rollback           what the switches shall hold besides
  shell s1                            p4runtime-shell on the switch
  h1 ping h2, exec h1 -- COMMAND      a command in a host
  mininet                             Mininet's own command line (exit: back here)
  exit                                take the cluster down
Every command takes --help."""
_LEAVE = ("exit", "quit", "down")
_ELSEWHERE = ("up", "run", "demo", "compare")


class Prompt:
    """The prompt: it reads commands until there are no more. `commands` is the whole p4reduce command."""

    def __init__(self, fabric: Fabric, commands: Any) -> None:
        self._fabric = fabric
        self._commands = commands

    def run(self) -> None:
        """Carry out lines until `exit` or the end of input."""
        name = self._fabric.state.name
        before = os.environ.get("P4REDUCE_CLUSTER")
        os.environ["P4REDUCE_CLUSTER"] = name
        try:
            say(f"cluster {name} is up: {self._summary()}. 'help' lists commands, 'exit' takes it down.")
            while (line := self._read(f"{name}> ")) is not None and self.carry_out(line):
                self._look()
        finally:
            if before is None:
                del os.environ["P4REDUCE_CLUSTER"]
            else:
                os.environ["P4REDUCE_CLUSTER"] = before

    def carry_out(self, line: str) -> bool:
        """Do what a line says; return False if it says to leave."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            complain(f"{line!r}: {error}")
            return True
        if not words:
            return True
        if words[0] in _LEAVE and words[1:] in ([], [self._fabric.state.name]):
            return False
        if words[0] == "help":
            say(_HELP)
        elif words[0] == "mininet":
            setLogLevel("output")  # what hosts print
            CLI(self._fabric.net)
            setLogLevel("warning")
        elif words[0] in _ELSEWHERE:
            complain(f"'{words[0]}' needs a terminal of its own")
        elif words[0] in self._hosts:
            self._in_host(words)
        elif hint := self._hint(words[0]):
            complain(hint)
        else:
            debug = "--debug" in words
            self._command([word for word in words if word != "--debug"], debug=debug)
        return True

    def _command(self, arguments: list[str], *, debug: bool = False) -> None:
        with self._fabric.outside():  # as in another terminal
            guarded(lambda: self._commands.main(args=arguments, prog_name="p4reduce"), debug=debug)

    @property
    def _hosts(self) -> dict[str, str]:
        """The hosts' addresses by name."""
        return {host.name: host.ip for host in self._fabric.state.hosts}

    def _in_host(self, words: list[str]) -> None:
        """Run `h1 ping h2` as Mininet does: hosts' names stand for their addresses."""
        host, *command = words
        if not command:
            complain(f"{host} is a host: '{host} COMMAND...' runs a command there")
            return
        self._command(["exec", host, "--", *(self._hosts.get(word, word) for word in command)])

    def _hint(self, word: str) -> str:
        """Return what somebody who knows Mininet may have meant; empty if the word is a command."""
        if any(word == switch.name for switch in self._fabric.state.switches):
            return (
                f"{word} is a switch: 'shell {word}' opens p4runtime-shell on it, 'show slots' and 'show "
                "ports' say what it has; 'mininet' runs commands where its process runs"
            )
        if word not in Commands.places and hasattr(CLI, f"do_{word}"):
            return f"'{word}' is Mininet's: say 'mininet' for its own command line ('exit' there: back here)"
        if word not in Commands.places and not word.startswith("-"):
            return (
                f"'{word}' is no command, and no host here ({', '.join(self._hosts)}): 'help' lists commands"
            )
        return ""

    def _read(self, prompt: str) -> str | None:
        """Return the next line; None at the end of input. Ctrl-C gives up the line, as in a shell."""
        while True:
            try:
                return input(prompt if sys.stdin.isatty() else "")
            except EOFError:
                return None
            except KeyboardInterrupt:
                say("")

    def _look(self) -> None:
        try:
            self._fabric.check()
        except TopologyError as error:
            complain(str(error))

    def _summary(self) -> str:
        state = self._fabric.state
        rate = "unlimited links" if state.rate_mbit is None else f"{state.rate_mbit:g} Mbit/s links"
        machines = sum(host.kind is HostKind.ROCE for host in state.hosts)
        hosts = f"{len(state.hosts)} hosts" + (f" ({machines} of them RoCE machines)" if machines else "")
        switches = f"{state.target} switch"
        if state.links:
            leaves = len(state.leaves())
            switches = f"{leaves} leaves, {len(state.switches) - leaves} spines, {state.target} switches"
        return f"{hosts}, {switches}, {rate}, path MTU {state.path_mtu}"
