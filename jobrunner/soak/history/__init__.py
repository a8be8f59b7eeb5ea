"""Histories: every call of clients and workers that changes tasks, recorded from outside, and a checker of them.

`recorder.py` and `call_records.py` write; `reader.py`, `task_states.py` and `__main__.py` are a separate program that
takes nothing from the rest of the package: ``python -m jobrunner.soak.history FOLDER``.
"""
