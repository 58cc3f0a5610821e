"""Finding, loading and checking the engine library, and what happens when it is missing or another one."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

import pyllmc
from pyllmc import _find, _native
from pyllmc.errors import AbiMismatch, InvalidArgument, LibraryNotFound

CC = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler here")


def run_python(code, *args, timeout=60, **environment):
    """A new interpreter that runs `code` in the checkout; the CompletedProcess."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], cwd=_find.CHECKOUT, timeout=timeout, text=True,
        capture_output=True, env={**os.environ, **environment},
    )  # fmt: skip


def compile_library(path, source, *flags):
    subprocess.run(
        [CC, "-shared", "-fPIC", "-o", path, "-x", "c", "-", *flags], input=source, text=True, check=True
    )
    return path


def stub_engine(path, abi=None, leave_out="", wrong_struct="", backend="cpu", build_info='"stub"'):
    """A library with all of the header's symbols, which do nothing. build_info: a C expression."""
    ffi = _native.interface()
    abi = _native.constants()["LLMC_ABI_VERSION"] if abi is None else abi
    sizes = {
        name: ffi.sizeof(name) + 8 * (name == wrong_struct)
        for name in ffi.list_types()[0]
        if ffi.typeof(name).kind == "struct" and ffi.typeof(name).fields is not None
    }
    lines = ["#include <dlfcn.h>", "#include <string.h>", f"int llmc_abi_version(void) {{ return {abi}; }}",
             f'const char *llmc_backend(void) {{ return "{backend}"; }}',
             f"const char *llmc_build_info(void) {{ return {build_info}; }}",
             "long long llmc_struct_size(const char *name) {"]  # fmt: skip
    lines += [
        f'  if (!strcmp(name, "{n.removeprefix("llmc_")}")) return {size};' for n, size in sizes.items()
    ]
    lines.append("  return 0; }")
    done = {"llmc_abi_version", "llmc_backend", "llmc_build_info", "llmc_struct_size", leave_out}
    verbs = {name for name in dir(_native.load("cpu")._lib) if name.startswith("llmc_")} - done
    lines += [f"int {name}(void) {{ return 0; }}" for name in verbs]
    return compile_library(path, "\n".join(lines))


def test_import_loads_no_engine_and_no_driver():
    code = "import pyllmc, pyllmc.trainer, pyllmc.train; print(open('/proc/self/maps').read())"
    maps = run_python(code).stdout
    assert "python" in maps
    for library in ("libllmc", "libcuda", "libgomp", "pyplot"):
        assert library not in maps


def test_missing_library_names_paths_hint_and_package(monkeypatch, tmp_path):
    monkeypatch.setattr(_find, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(_find, "CHECKOUT", tmp_path)
    monkeypatch.delenv(_find.OVERRIDE, raising=False)
    with pytest.raises(LibraryNotFound) as error:
        _find.find_library("cpu")
    for part in (tmp_path / "package" / "libllmc_cpu.so", tmp_path / "build" / "libllmc_cpu.so", "`make`"):
        assert str(part) in str(error.value)
    assert f"package in use: {tmp_path / 'package'}" in str(error.value)


def test_override_is_the_only_path(monkeypatch, tmp_path):
    monkeypatch.setenv(_find.OVERRIDE, str(tmp_path / "absent.so"))
    with pytest.raises(LibraryNotFound, match="absent.so.*PYLLMC_LIBRARY"):
        _native.choose("auto")
    with pytest.raises(LibraryNotFound, match="other.so.*library argument"):
        _native.choose("auto", tmp_path / "other.so")


def test_foreign_file_is_no_library(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    with pytest.raises(LibraryNotFound, match="text.so can't be loaded"):
        _native.load("cpu", path)


@needs_compiler
def test_a_library_that_agrees_is_taken(tmp_path):
    library = _native.load("cpu", stub_engine(tmp_path / "good.so"))
    assert library.build_info == "stub"


@needs_compiler
@pytest.mark.parametrize(
    "fault, expected",
    [({"abi": 99}, f"ABI 99, the package expects {_native.constants()['LLMC_ABI_VERSION']}"),
     ({"leave_out": "llmc_decode"}, "lacks llmc_decode"),
     ({"wrong_struct": "llmc_guard"}, "llmc_guard has .* bytes, the package expects")],
)  # fmt: skip
def test_stale_library(tmp_path, fault, expected):
    path = stub_engine(tmp_path / "stale.so", **fault)
    with pytest.raises(AbiMismatch, match=f"{expected}.*run `make` again"):
        _native.load("cpu", path)


@needs_compiler
def test_other_backend_than_asked(tmp_path):
    path = stub_engine(tmp_path / "odd.so", backend="cuda")
    with pytest.raises(InvalidArgument, match="is a cuda engine, but device 'cpu'"):
        _native.load("cpu", path)


@needs_compiler
def test_missing_dependency_names_object_and_wheel(tmp_path):
    compile_library(
        tmp_path / "libcublasLt.so.77", "int f(void) { return 1; }", "-Wl,-soname,libcublasLt.so.77"
    )
    path = compile_library(
        tmp_path / "needs.so", "int f(void); int g(void) { return f(); }",
        "-Wl,--no-as-needed", "-L" + str(tmp_path), "-l:libcublasLt.so.77",
    )  # fmt: skip
    (tmp_path / "libcublasLt.so.77").rename(tmp_path / "hidden")
    with pytest.raises(LibraryNotFound, match=r"libcublasLt\.so\.77.*pip install nvidia-cublas has it"):
        _native.load("cpu", path)


@needs_compiler
def test_dependency_is_found_in_a_wheel(tmp_path, monkeypatch):
    wheel = tmp_path / "site" / "nvidia" / "cu99" / "lib"
    wheel.mkdir(parents=True)
    compile_library(wheel / "libonlyhere.so.5", "int f(void) { return 1; }", "-Wl,-soname,libonlyhere.so.5")
    path = compile_library(
        tmp_path / "needs.so", "int f(void); int g(void) { return f(); }",
        "-Wl,--no-as-needed", "-L" + str(wheel), "-l:libonlyhere.so.5",
    )  # fmt: skip
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    opened = _find.open_with_dependencies(path, _native.interface().dlopen)
    assert opened is not None


def late_opener(path, soname):
    """A CUDA engine that opens `soname` by itself, as the real one opens cuDNN; its build info says whether it could."""
    opens = f'dlopen("{soname}", RTLD_NOW | RTLD_LOCAL) ? "found" : "absent"'
    return stub_engine(path, backend="cuda", build_info=opens)


@needs_compiler
def test_what_an_engine_opens_late_comes_from_a_wheel(tmp_path, monkeypatch):
    """No search path is set: only what Python has loaded before lets the engine's own dlopen succeed."""
    wheel = tmp_path / "site" / "nvidia" / "late" / "lib"
    wheel.mkdir(parents=True)
    compile_library(wheel / "liblate.so.9", "int f(void) { return 1; }", "-Wl,-soname,liblate.so.9")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    monkeypatch.setitem(_find.OPENED_LATER, "cuda", ("libnowhere.so.9", "liblate.so.9"))
    assert _native.load("cuda", late_opener(tmp_path / "a.so", "liblate.so.9")).build_info == "found"
    assert _native.load("cuda", late_opener(tmp_path / "b.so", "libnowhere.so.9")).build_info == "absent"


@needs_compiler
def test_a_broken_wheel_of_what_is_opened_late_is_no_error(tmp_path, monkeypatch):
    wheel = tmp_path / "site" / "nvidia" / "late" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libtorn.so.9").write_text("no library")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    monkeypatch.setitem(_find.OPENED_LATER, "cuda", ("libtorn.so.9",))
    assert _native.load("cuda", late_opener(tmp_path / "a.so", "libtorn.so.9")).build_info == "absent"


@pytest.mark.parametrize("has_wheel, asked", [(True, ["wheel"]), (False, ["wheel", "system"])])
def test_a_wheel_goes_before_the_system(monkeypatch, has_wheel, asked):
    found = []
    monkeypatch.setattr(_find, "_load_from_wheel", lambda soname: found.append("wheel") or has_wheel)
    monkeypatch.setattr(_find.ctypes, "CDLL", lambda soname, mode: found.append("system"))
    _find.offer("libany.so.9")
    assert found == asked


def test_the_engine_opens_cudnn_by_the_name_that_is_offered():
    source = (_find.CHECKOUT / "llmc" / "cuda" / "attention_cudnn.cpp").read_text()
    (soname,) = _find.OPENED_LATER["cuda"]
    assert f'LLMC_CUDNN_LIBRARY "{soname}"' in source and _find.wheel_of(soname)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "", None, 0])
def test_unknown_device(name):
    with pytest.raises(InvalidArgument, match="is not one of auto, cpu, cuda, cuda:N"):
        _native.choose(name)


def test_auto_falls_back_with_a_warning(monkeypatch, tmp_path, caplog):
    """A CUDA library that is there but can't be used is not passed over in silence."""
    cpu = _native.load("cpu")
    broken = tmp_path / "libllmc_cuda.so"
    broken.write_text("broken")
    monkeypatch.delenv(_find.OVERRIDE, raising=False)
    monkeypatch.setattr(
        _find, "library_paths", lambda backend, given=None: [broken if backend == "cuda" else cpu.path]
    )
    library, ordinal, reason = _native.choose("auto")
    assert library.backend == "cpu" and ordinal == 0 and "can't be used" in reason
    assert "training on the CPU, because" in caplog.text
    caplog.clear()
    _native.choose("auto")
    assert caplog.text == ""  # once is enough


FORK = """
import os, sys
import pyllmc
config = pyllmc.GPT2Config(layers=1, heads=1, channels=16, vocab=20, context=4)
def use():
    with pyllmc.GPT2.from_config(config, batch=1, seq_len=4, device="cpu") as model:
        return model.step([[1, 2, 3, 4]], [[2, 3, 4, 5]]).loss
def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except pyllmc.StateError as error:
            print(error, flush=True)
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert in_child(use) == 0, "an import alone must leave a child free to use the engine"
kept = pyllmc.GPT2.from_config(config, batch=1, seq_len=4, device="cpu")
first = kept.step([[1, 2, 3, 4]], [[2, 3, 4, 5]]).loss
assert in_child(use) == 7
assert in_child(lambda: kept.step([[1, 2, 3, 4]], [[2, 3, 4, 5]])) == 7
assert in_child(kept.close) == 0
assert kept.step([[1, 2, 3, 4]], [[2, 3, 4, 5]]).loss < first
print("parent goes on")
"""


def test_fork():
    done = run_python(FORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("fork") == 4 and 'get_context("spawn")' in done.stdout
    assert done.stdout.endswith("parent goes on\n")


def test_openmp_environment_is_left_alone():
    code = """if True:
        import os, pyllmc._native as n
        before = dict(os.environ)
        n.load("cpu")
        assert os.environ == before"""
    assert run_python(code).returncode == 0
    assert run_python(code, OMP_WAIT_POLICY="active").returncode == 0


def test_package_exports_only_what_exists():
    assert all(hasattr(pyllmc, name) for name in pyllmc.__all__)
