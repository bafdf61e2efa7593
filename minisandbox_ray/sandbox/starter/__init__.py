"""What runs outside the owning process: the starter, and pid 1 of every sandbox forked from it.

Standard library only. Exec'd by `python -I -S` under the name `starter`, imported by the host side under its full
name; so imports in here are relative.
"""
