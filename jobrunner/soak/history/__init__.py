"""Records every call of clients and workers that changes tasks, from outside of them, and checks such a history.

`recorder.py` and `call_records.py` write; `reader.py` and `__main__.py` are a separate program that imports
nothing from the rest of the package: ``python -m jobrunner.soak.history FOLDER``.
"""
