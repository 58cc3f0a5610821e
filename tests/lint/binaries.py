"""Judges what was compiled, where a source may hide what it does behind a macro or a template.

binaries.py exports HEADER LIBRARY...   dynamic symbols are exactly the header's functions; none undefined
binaries.py objects OBJECT...           nothing that prints, exits or aborts is called

Prints one line per fault and exits with 1 if there was any.
"""

import re
import subprocess
import sys
from pathlib import Path

# What a library must not do to its host program, by symbol as nm shows it.
FORBIDDEN = re.compile(
    r"^(exit|_exit|_Exit|quick_exit|abort|__assert_fail|__assert_perror_fail|system"
    r"|v?f?printf|__v?f?printf_chk|puts|fputs|putchar|fputc|putc|fwrite|perror|psignal|stdout|stderr"
    r"|_ZSt4cout|_ZSt4cerr|_ZSt4clog|cout|cerr)$"
)

# What a third party's header refers to, by object, with the reason why it is harmless.
ALLOWED = {
    # cuDNN's frontend keeps references to the streams of its log, which we compile out.
    "attention_cudnn.o": {"_ZSt4cout", "_ZSt4cerr"},
}


def nm(*arguments):
    done = subprocess.run(["nm", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"nm {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return [line.split() for line in done.stdout.splitlines() if line.strip()]


def declared(header):
    """Functions between the header's two ABI marks."""
    text = Path(header).read_text()
    marks = re.search(r"begin ABI.*?\*/(.*?)/\*[^/]*?end ABI", text, re.S)
    if not marks:
        raise SystemExit(f"{header}: no \"begin ABI\" ... \"end ABI\" region")
    code = re.sub(r"/\*.*?\*/", "", marks[1], flags=re.S)
    code = re.sub(r"\{[^{}]*\}", "", code)
    return set(re.findall(r"(\w+)\s*\([^()]*\)\s*;", code))


def exported(library):
    return {words[-1].split("@")[0] for words in nm("-D", "--defined-only", library)}


def export_faults(header, library):
    wanted, found = declared(header), exported(library)
    for name in sorted(wanted - found):
        yield f"{library}: {name} is declared in {header} and not exported"
    for name in sorted(found - wanted):
        yield f"{library}: {name} is exported and not declared in {header}"
    loader = subprocess.run(["ldd", "-r", library], capture_output=True, text=True)
    for line in (loader.stdout + loader.stderr).splitlines():
        if "undefined symbol" in line or "not found" in line:
            yield f"{library}: {line.strip()}"


def object_faults(path):
    allowed = ALLOWED.get(Path(path).name, set())
    for words in nm("-u", path):
        symbol = words[-1].split("@")[0]
        if FORBIDDEN.match(symbol) and symbol not in allowed:
            yield f"{path}: refers to {symbol}; the engine reports by status and leaves the rest to its caller"


def main(command, *arguments):
    if command == "exports" and len(arguments) > 1:
        faults = [fault for library in arguments[1:] for fault in export_faults(arguments[0], library)]
    elif command == "objects" and arguments:
        faults = [fault for path in arguments for fault in object_faults(path)]
    else:
        raise SystemExit(__doc__.strip())
    print(*faults, sep="\n", end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
