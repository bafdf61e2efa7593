"""Compiling a virtual environment's modules so that the same sources give the same bytes.

What Python writes of a constant depends on whether the compiling process refers to it from elsewhere, before Python
3.12 at least; so with ``compileall -j`` the bytes depend on which files a process met before. Here each hundred files
of one package, in one order, have a process that starts as all others do: what else is installed makes no difference,
and environments share what they have in common (see `layers`).
"""

_PROGRAM = """
import compileall, gc, os, sys
gc.disable()  # when it runs depends on everything, and decides what is referred to
forget = getattr(sys, "_clear_type_cache", None) or (lambda: None)  # it refers to names, by their random addresses
files = sorted(
    os.path.join(folder, name)
    for place in sys.argv[1:] for folder, _, names in os.walk(place) for name in names if name.endswith(".py")
)
packages = {}
for file in files:
    place, _, path = file.rpartition("/site-packages/")
    packages.setdefault((place, path.split("/")[0]) if place else os.path.dirname(file), []).append(file)
running = 0
for files in (some[start : start + 100] for some in packages.values() for start in range(0, len(some), 100)):
    if running == os.cpu_count():
        os.wait()
        running -= 1
    running += 1
    if os.fork() == 0:
        try:
            for file in files:
                forget()
                compileall.compile_file(file, quiet=2)
        finally:
            os._exit(0)
while running:
    os.wait()
    running -= 1
"""


def compile_command(places: str) -> str:
    """Shell: compile all modules below `places`, words of the shell's. Files that are no Python are left out."""
    # With SOURCE_DATE_EPOCH Python would make the kind of file that hashes the source at each import.
    return f"""
cd /
env -u SOURCE_DATE_EPOCH -u PYTHONPATH PYTHONHASHSEED=0 /venv/bin/python -S - {places} > /dev/null 2>&1 << 'END' || true
{_PROGRAM}
END
"""
