"""The command line: tasks, tables, errors as messages."""
