"""`kill -9` again and again while a pipeline runs, and then a count of what each sink holds.

The quick form is `tests/test_kill.py`, the long one `./dev.sh chaos --kills N`.
"""
