"""Modules of the commands: one for each command or group of commands."""
