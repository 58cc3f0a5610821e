"""The build: what it detects, what it refuses and in which words, and what the finished libraries may hold."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = {name: ROOT / "build" / f"libllmc_{name}.so" for name in ("cpu", "cuda")}


def module(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


binaries = module("tests/lint/binaries.py")


@pytest.fixture
def toolchain():
    return module("llmc/toolchain.py")  # afresh: it remembers what it found


def run(*command, **environment):
    # A make that runs these tests must not hand its job server to the make that they start.
    kept = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CUDA_ARCHS", "NVCC")}
    return subprocess.run(command, cwd=ROOT, env=kept | environment, capture_output=True, text=True)


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + text)
    (folder / name).chmod(0o755)
    return folder


def one_sentence(done):
    """What was refused: exit status 2 and a single line without a traceback."""
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done
    return done.stderr


# -- GPU architectures (BLD-05) -------------------------------------------------------------------

ERROR = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
NVCC = "case $1 in --list-gpu-arch) echo compute_75; echo compute_80; echo compute_90;; *) echo release 12.4;; esac"


@pytest.mark.parametrize(
    "nvidia_smi, archs",
    {
        "none": ("exit 127", "80 90"),
        "error and status 9": (f"echo \"{ERROR}\"; exit 9", "80 90"),
        "error and status 0": (f"echo \"{ERROR}\"; exit 0", "80 90"),
        "error on stderr, status 0": (f"echo \"{ERROR}\" >&2; exit 0", "80 90"),
        "nothing": ("exit 0", "80 90"),
        "not known": ("echo '[N/A]'", "80 90"),
        "field too new for the driver": ("echo 'Field \"compute_cap\" is not a valid field to query.'", "80 90"),
        "one of two broken": ("echo 9.0; echo '[Unknown Error]'", "80 90"),
        "a warning before the answer": ("echo 'WARNING: infoROM is corrupted'; echo 9.0", "80 90"),
        "one": ("echo 9.0", "90"),
        "eight alike": ("for i in 1 2 3 4 5 6 7 8; do echo 9.0; done", "90"),
        "two kinds": ("echo 9.0; echo 8.0", "80 90"),
        "newer than the compiler": ("echo 12.0", "90"),
        "between those of the compiler": ("echo 8.9", "80"),
    }.values(),
)
def test_architectures_come_from_gpus_or_the_fixed_list(tmp_path, nvidia_smi, archs):
    program(tmp_path / "bin", "nvidia-smi", nvidia_smi)
    path = program(tmp_path / "bin", "nvcc", NVCC)
    done = run("make", "-s", "print-archs", f"PYTHON={sys.executable}", PATH=f"{path}:{os.environ['PATH']}")
    assert done.returncode == 0 and done.stderr == "" and done.stdout == archs + "\n", done


def test_architectures_without_nvidia_smi_and_nvcc(tmp_path):
    done = run(sys.executable, "llmc/toolchain.py", "archs", PATH=str(tmp_path))
    assert done.stdout == "80 90\n"


def test_gpu_too_old_for_the_compiler_is_refused(tmp_path):
    program(tmp_path / "bin", "nvidia-smi", "echo 6.1")
    path = program(tmp_path / "bin", "nvcc", NVCC)
    said = one_sentence(run(sys.executable, "llmc/toolchain.py", "archs", PATH=f"{path}:{os.environ['PATH']}"))
    assert "61" in said and "75" in said and "CUDA_ARCHS" in said


def test_chosen_architectures_win():
    ask = (sys.executable, "llmc/toolchain.py", "archs")
    assert run(*ask, CUDA_ARCHS="80,90a 120").stdout == "80 90a 120\n"
    for bad in ("sm_90", "9.0", "90; rm -rf x", "native"):
        assert bad.split()[0] in one_sentence(run(*ask, CUDA_ARCHS=bad))


@pytest.mark.parametrize("chosen, options", {
    "default": ("80 90", ["compute_80,code=sm_80", "compute_90a,code=sm_90a", "compute_90,code=compute_90"]),
    "not last": ("90 120", ["compute_90a,code=sm_90a", "compute_120,code=[sm_120,compute_120]"]),
    "as written": ("90a", ["compute_90a,code=[sm_90a,compute_90a]"]),
}.values())
def test_each_architecture_gets_its_own_target_and_the_last_one_ptx(toolchain, monkeypatch, chosen, options):
    monkeypatch.setenv("CUDA_ARCHS", chosen)
    assert list(toolchain.arch_options()) == [f"-gencode=arch={option}" for option in options]


# -- compilers and options ------------------------------------------------------------------------


def test_missing_compiler_is_one_sentence(tmp_path):
    done = run(sys.executable, "llmc/toolchain.py", "write", str(tmp_path / "o"), "cpu-compile", CXX="g++-none")
    said = one_sentence(done)
    assert "g++-none" in said and "apt install" in said and not (tmp_path / "o").exists()


def test_old_cuda_and_strange_nvcc_are_refused(tmp_path):
    path = program(tmp_path / "bin", "nvcc", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
    search = {"PATH": f"{path}:{os.environ['PATH']}"}
    assert "12.4" in run(sys.executable, "llmc/toolchain.py", "cuda-ready", **search).stdout
    assert "12.4" in one_sentence(run(sys.executable, "llmc/toolchain.py", "write", "o", "cuda-link", **search))
    program(tmp_path / "bin", "nvcc", "echo 'nvcc: not for this machine'; exit 1")
    assert "not for this machine" in one_sentence(run(sys.executable, "llmc/toolchain.py", "cuda-ready", **search))


def test_no_compiler_at_all_is_a_reason_and_not_a_crash(tmp_path, toolchain, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(toolchain, "wheel_dirs", lambda: [])
    assert toolchain.nvcc() is None and "nvcc" in toolchain.cuda_ready()
    assert toolchain.find_header("no_such.h") is None  # headers are looked for before a compiler is installed


def test_options_file_changes_only_with_its_content(tmp_path, toolchain, monkeypatch):
    path = tmp_path / "folder" / "options"
    toolchain.write(path, "cpu-compile", ["a.o"])
    assert "-O3" in path.read_text().split()
    os.utime(path, (1, 1))
    toolchain.write(path, "cpu-compile", ["a.o"])
    assert path.stat().st_mtime == 1
    toolchain.write(path, "cpu-compile", ["a.o", "b.o"])  # a source came: link again
    assert path.stat().st_mtime > 1
    os.utime(path, (1, 1))
    monkeypatch.setattr(toolchain, "COMMON", ["-O2"])
    toolchain.write(path, "cpu-compile", ["a.o", "b.o"])
    assert path.stat().st_mtime > 1 and "-O2" in path.read_text()


def test_options_survive_spaces(tmp_path, toolchain):
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "x.h").write_text("#define X 1\n")
    options = tmp_path / "options"
    options.write_text("\n".join(map(toolchain.quote, ["-fsyntax-only", "-isystem", str(folder), "-DY=\"q\""])))
    (tmp_path / "x.cpp").write_text("#include <x.h>\nconst char *y = Y; int x[X];\n")
    assert run("g++", f"@{options}", str(tmp_path / "x.cpp")).returncode == 0


def test_libraries_run_on_any_cpu_of_their_kind(toolchain):
    """PKG-06: the build machine's vector units must not become a condition."""
    for options in (toolchain.COMMON, toolchain.cpu_compile()):
        assert not [o for o in options if o.startswith(("-march", "-mcpu", "-mtune", "-mavx", "-ffast-math", "-Ofast"))]


# -- Python packages ------------------------------------------------------------------------------


def test_requirements_expand_their_own_extras(toolchain):
    names = [toolchain.name_of(r) for r in toolchain.requirements("cuda")]
    assert {"nvidia-cublas", "nvidia-cuda-nvcc"} <= set(names) and "pyllmc" not in names
    assert "numpy" in map(toolchain.name_of, toolchain.requirements("base"))


def test_packages_that_users_are_told_to_install_are_declared(toolchain):
    """By their own names, which hold in a checkout too: an extra of pyllmc needs it to be on a package index."""
    listed = toolchain.project()
    extras = ["base", *listed["optional-dependencies"]]
    declared = {toolchain.name_of(requirement) for extra in extras for requirement in toolchain.requirements(extra)}
    files = [*(ROOT / "pyllmc").rglob("*.py"), *(ROOT / "tests").glob("*.py"), ROOT / "README.md"]
    told = {
        (hint, path.name) for path in files for hint in re.findall(r"pip install (['\w.\[-]+)", path.read_text())
        if path != Path(__file__).resolve()
    }  # fmt: skip
    assert {"wandb", "tensorboard", "cupti-python", "pyarrow"} <= {hint for hint, _ in told}
    assert not [(hint, name) for hint, name in told if hint not in declared]


@pytest.fixture
def bare(toolchain, monkeypatch, tmp_path):
    """A system's own Python as PEP 668 marks it, where everything is missing and pip must not be reached."""
    monkeypatch.setattr(toolchain, "missing", lambda extra: ["numpy>=1"])
    monkeypatch.setattr(toolchain, "run", lambda *a, **k: pytest.fail("pip was called"))
    monkeypatch.setattr(toolchain.sys, "prefix", toolchain.sys.base_prefix)
    monkeypatch.delenv("PIP_BREAK_SYSTEM_PACKAGES", raising=False)
    (tmp_path / "EXTERNALLY-MANAGED").write_text("[externally-managed]\nError=a page of text\n")
    known = sysconfig.get_path
    monkeypatch.setattr(
        toolchain.sysconfig, "get_path", lambda name, *a: str(tmp_path) if name == "stdlib" else known(name, *a)
    )
    return toolchain


@pytest.mark.parametrize("extra", ["base", "test", "parity"])
def test_externally_managed_python_gets_one_sentence(bare, capsys, extra):
    with pytest.raises(SystemExit) as stopped:
        bare.install(extra)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1 and "python3 -m venv .venv" in said
    assert "apt install" not in said  # this Python can make one


def test_debian_python_without_venv_is_told_its_package(bare, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        bare.importlib.util, "find_spec", lambda name, *a: None if name == "ensurepip" else find(name, *a)
    )
    with pytest.raises(SystemExit):
        bare.install("base")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "apt install python3-venv && python3 -m venv" in said


def test_nothing_is_installed_when_nothing_is_missing(bare, monkeypatch, capsys):
    monkeypatch.setattr(bare, "missing", lambda extra: [])
    bare.install("base")
    assert capsys.readouterr() == ("", "")


def test_pip_failure_keeps_its_words(toolchain, monkeypatch, capsys):
    monkeypatch.setattr(toolchain, "run", lambda *a, **k: (1, "ERROR: no such index\n"))
    with pytest.raises(SystemExit) as stopped:
        toolchain.pip_install("numpy", ["numpy"])
    assert stopped.value.code == 2 and "no such index" in capsys.readouterr().err


# -- what the libraries hold ----------------------------------------------------------------------


@pytest.fixture(params=LIBRARIES)
def library(request):
    if not LIBRARIES[request.param].exists():
        pytest.skip(f"{LIBRARIES[request.param]} is not built")
    return LIBRARIES[request.param]


def test_library_exports_the_header_and_misses_nothing(library):
    assert len(binaries.declared(ROOT / "llmc/llmc.h")) >= 30
    assert list(binaries.export_faults(ROOT / "llmc/llmc.h", library)) == []


def test_library_asks_for_others_by_plain_name(library):
    """PKG-02: a path in DT_NEEDED would bind the library to the machine that built it, and so would
    the driver or a shared CUDA runtime."""
    dynamic = run("readelf", "-d", str(library)).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed and not [name for name in needed if "/" in name or re.match(r"libcuda(rt)?\.so", name)]
    assert "$ORIGIN/" in re.search(r"\((?:RUNPATH|RPATH)\).*\[(.+)\]", dynamic)[1]


@pytest.fixture
def small(tmp_path):
    """A header and a maker of libraries that are meant to implement it."""
    header = tmp_path / "small.h"
    header.write_text(
        "/* ---- begin ABI: x ---- */\n/* llmc_ghost(void); */ typedef struct { int a; } llmc_t; enum { A = 1 };\n"
        "int llmc_one(void);\nconst char *llmc_two(llmc_t *t,\n    int n); /* [sync] (all) */\n/* ---- end ABI ---- */\n"
    )

    def build(code, *options):
        source, output = tmp_path / "small.cpp", tmp_path / "small.so"
        source.write_text(code)
        subprocess.run(["g++", "-shared", "-fPIC", *options, "-o", output, source], check=True)
        return "\n".join(binaries.export_faults(header, output))

    return build


ONE = "extern \"C\" int llmc_one(void) { return 1; }\n"
TWO = "extern \"C\" const char *llmc_two(void *, int) { return \"\"; }\n"


def test_export_check_sees_each_fault(small):
    assert small(ONE + TWO) == ""
    assert "llmc_two is declared" in small(ONE)
    assert "leak" in small(ONE + TWO + "int leak() { return 0; }")
    assert "llmc_ghost is exported and not declared" in small(ONE + TWO + "extern \"C\" void llmc_ghost() {}")
    assert "undefined symbol: nowhere" in small(ONE + TWO + "extern \"C\" void nowhere(); void *p = (void *)nowhere;")


FORBIDDEN = {
    "printf": "#include <cstdio>\nvoid f(int x) { printf(\"%d\", x); }",
    "puts": "#include <cstdio>\nvoid f() { printf(\"words\\n\"); }",
    "stderr": "#include <cstdio>\nvoid f(int x) { fprintf(stderr, \"%d\", x); }",
    "_ZSt4cout": "#include <iostream>\nvoid f() { std::cout << 1; }",
    "_ZSt4cerr": "#include <iostream>\nvoid f() { std::cerr << 1; }",
    "exit": "#include <cstdlib>\nvoid f() { exit(1); }",
    "_exit": "#include <unistd.h>\nvoid f() { _exit(1); }",
    "abort": "#include <cstdlib>\nvoid f() { abort(); }",
    "__assert_fail": "#include <cassert>\nvoid f(int x) { assert(x > 0); }",
}


@pytest.mark.parametrize("symbol, optimise", [(s, o) for s in FORBIDDEN for o in ("-O0", "-O2 -D_FORTIFY_SOURCE=2")])
def test_object_check_sees_each_fault(tmp_path, symbol, optimise):
    source, output = tmp_path / "f.cpp", tmp_path / "f.o"
    source.write_text(FORBIDDEN[symbol])
    subprocess.run(["g++", *optimise.split(), "-c", "-o", output, source], check=True)
    assert list(binaries.object_faults(output)), symbol


def test_object_check_lets_honest_code_pass(tmp_path):
    source, output = tmp_path / "f.cpp", tmp_path / "f.o"
    source.write_text("#include <cstdio>\n#include <stdexcept>\nvoid f(char *t, int exit_code) "
                      "{ snprintf(t, 9, \"%d\", exit_code); throw std::runtime_error(t); }")
    subprocess.run(["g++", "-O2", "-c", "-o", output, source], check=True)
    assert list(binaries.object_faults(output)) == []


# -- make test-gpu --------------------------------------------------------------------------------


def test_a_gpu_run_that_skipped_everything_fails(tmp_path):
    report = tmp_path / "report.xml"
    skipped = "<testcase><skipped message='no CUDA device'/></testcase>"
    for tests, fails in ((skipped, True), (skipped + "<testcase/>", False), ("", True)):
        count, skips = tests.count("<testcase"), tests.count("<skipped")
        report.write_text(f"<testsuites><testsuite tests='{count}' skipped='{skips}'>{tests}</testsuite></testsuites>")
        done = run(sys.executable, "tests/lint/all_skipped.py", str(report))
        assert bool(done.returncode) == fails
    report.write_text(f"<testsuites><testsuite tests='1' skipped='1'>{skipped}</testsuite></testsuites>")
    assert "no CUDA device" in run(sys.executable, "tests/lint/all_skipped.py", str(report)).stderr
