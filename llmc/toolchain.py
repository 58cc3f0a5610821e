"""Finds what the Makefile needs: Python packages, BLAS, the CUDA compiler and libraries.

Each command prints its answer; an error is one sentence and exit status 2. Run before anything is
installed, so it uses the standard library alone.

    toolchain.py install base|test|parity|cuda   pip-install what is missing, and only that
    toolchain.py archs                           GPU architectures to compile for, as in "80 90"
    toolchain.py cuda-ready                      "yes", or the reason why the CUDA library can't be built
    toolchain.py write FILE KIND                 compiler options of KIND (below), if they changed
"""

import fcntl
import functools
import glob
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_ARCHS = ["80", "90"]


def stop(sentence):
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


if sys.version_info < (3, 10):
    version = sys.version.split()[0]
    stop(f"pyllmc needs Python 3.10 or newer; {sys.executable} is {version} (choose one with PYTHON=...).")


def run(*command, timeout=60):
    """Exit status and both outputs together; status None if it can't be run at all."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              timeout=timeout, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    return done.returncode, done.stdout


# -- Python packages ------------------------------------------------------------------------------


@functools.cache
def project():
    try:
        import tomllib
    except ImportError:  # Python 3.10; pip carries the same parser
        from pip._vendor import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(extra):
    """The extra's requirements, extras of our own expanded; "base" is what every run needs."""
    listed = project()["dependencies"] if extra == "base" else project()["optional-dependencies"][extra]
    for requirement in listed:
        own = re.fullmatch(r"pyllmc\[(.+)\]", requirement)
        yield from requirements(own[1]) if own else [requirement]


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def missing(extra):
    found = []
    for requirement in requirements(extra):
        try:
            importlib.metadata.version(name_of(requirement))
        except importlib.metadata.PackageNotFoundError:
            found.append(requirement)
    return found


def check_can_install():
    """PEP 668: a distribution's own Python refuses pip; say what to do instead of showing pip's page."""
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if marker.exists() and sys.prefix == sys.base_prefix and not os.environ.get("PIP_BREAK_SYSTEM_PACKAGES"):
        # Debian splits ensurepip off into another package, without which venv fails half-way.
        first = "" if importlib.util.find_spec("ensurepip") else "apt install python3-venv && "
        stop("This Python belongs to the system and takes no packages; make a virtual environment and run make there: "
             f"{first}python3 -m venv .venv && . .venv/bin/activate && make")
    if not importlib.util.find_spec("pip"):
        stop(f"{sys.executable} has no pip: run \"{sys.executable} -m ensurepip\", or use a virtual environment "
             "(python3 -m venv .venv && . .venv/bin/activate).")


def pip_install(label, arguments):
    print(f"  PIP   {label}", flush=True)
    status, output = run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
                         *arguments, timeout=None)
    if status != 0:
        stop(f"{output.strip()}\npip could not install {label}; the lines above are its own.")


def install(extra):
    if os.environ.get("OFFLINE"):
        return
    if extra == "base":
        if wanted := missing(extra):
            check_can_install()
            # Editable: "python -m pyllmc.train" then works from any folder.
            pip_install(", ".join(name_of(r) for r in wanted), ["--editable", str(ROOT)])
    elif extra == "cuda":
        install_cuda()
    elif wanted := missing(extra):
        check_can_install()
        pip_install(", ".join(name_of(r) for r in wanted), wanted)


def install_cuda():
    """Whatever part of compiler, libraries and headers this machine lacks; a toolkit's own are kept."""
    compiler = nvcc()
    extra = "cuda" if not compiler else "cuda-libs" if cuda_version()[0] >= 13 else "cuda12-libs"
    wanted = missing(extra)
    if compiler and find_library("cublasLt") and (not use_cudnn() or find_library("cudnn")):
        wanted = [r for r in wanted if name_of(r) in ("cuda-pathfinder", "nvidia-ml-py")]
    if wanted:
        check_can_install()
        names = [name_of(r) for r in wanted]
        size = " (over 1 GB to fetch)" if any("cudnn" in name or "cublas" in name for name in names) else ""
        pip_install(", ".join(names) + size, wanted)
        forget()
    if use_cudnn() and not find_header("cudnn_frontend.h"):
        check_can_install()
        pip_install("nvidia-cudnn-frontend", ["--no-deps", *requirements("cudnn-frontend")])
    forget()
    if (state := cuda_ready()) != "yes":
        stop(state)


# -- CUDA -----------------------------------------------------------------------------------------


@functools.cache
def wheel_dirs():
    """Every site-packages/nvidia; NVIDIA's wheels share this namespace."""
    places = [Path(p) / "nvidia" for p in [*sys.path, sysconfig.get_path("purelib")] if p]
    return [str(p) for p in dict.fromkeys(places) if p.is_dir()]


@functools.cache
def nvcc():
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    wheels = [f"{d}/cu13/bin/nvcc" for d in wheel_dirs()]
    for path in [os.environ.get("NVCC"), shutil.which("nvcc"), f"{home}/bin/nvcc", *wheels]:
        if path and (path := shutil.which(path)):
            return path
    return None


@functools.cache
def cuda_version():
    status, text = run(nvcc(), "--version")
    release = re.search(r"release (\d+)\.(\d+)", text)
    if status != 0 or not release:
        stop(f"{nvcc()} --version answers {text.strip()[:200]!r}; expected a CUDA compiler (choose one with NVCC=...).")
    return int(release[1]), int(release[2])


@functools.cache
def toolkit_dirs():
    """Include and library folders that nvcc itself uses; it may be a wrapper, so ask instead of guessing."""
    if not nvcc():
        return [], []
    _, text = run(nvcc(), "--dryrun", "-E", "-x", "cu", os.devnull)
    top = re.search(r"^#\$ TOP=(.*)$", text, re.M)
    includes = re.findall(r'"-I([^"]+)"', "".join(re.findall(r"^#\$ INCLUDES=.*$", text, re.M)))
    libraries = re.findall(r'"-L([^"]+)"', "".join(re.findall(r"^#\$ LIBRARIES=.*$", text, re.M)))
    if top:
        includes += [f"{top[1]}/include"]
        libraries += [f"{top[1]}/lib64", f"{top[1]}/lib"]
    # The stubs folder is for linking only: an rpath to it would load a libcuda that does nothing.
    return clean(includes), [d for d in clean(libraries) if not d.endswith("/stubs")]


def clean(folders):
    return [d for d in dict.fromkeys(os.path.realpath(f) for f in folders) if os.path.isdir(d)]


@functools.cache
def include_dirs():
    """Search order. cuDNN and NCCL from wheels come first. The wheels' common folder comes after the
    toolkit's: it may hold a CUDA runtime of another release, whose headers don't fit this nvcc."""
    own, common = [], []
    for d in wheel_dirs():
        for folder in sorted(glob.glob(f"{d}/*/include")):
            (own if "/cudnn/" in folder or "/nccl/" in folder else common).append(folder)
    frontend = [os.environ.get("CUDNN_FRONTEND", ""), *(f"{os.path.dirname(d)}/include" for d in wheel_dirs()),
                sysconfig.get_path("purelib") + "/include"]
    frontend = [d for d in frontend if os.path.exists(f"{d}/cudnn_frontend.h")][:1]
    return own, clean([*toolkit_dirs()[0], *common, *frontend])


@functools.cache
def library_dirs():
    wheels = [folder for d in wheel_dirs() for folder in sorted(glob.glob(f"{d}/*/lib"))]
    system = [f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64"]
    return clean([*wheels, *toolkit_dirs()[1], *system])


def soname(library):
    major = {"cudnn": 9, "nccl": 2}.get(library) or cuda_version()[0]
    return f"lib{library}.so.{major}"


def find_library(library):
    """Full path of the file with the soname: wheels have no libX.so beside it to link by."""
    return next((f"{d}/{soname(library)}" for d in library_dirs() if os.path.exists(f"{d}/{soname(library)}")), None)


def find_header(header):
    folders = [d for group in include_dirs() for d in group] + ["/usr/include"]
    return next((f"{d}/{header}" for d in folders if os.path.exists(f"{d}/{header}")), None)


def find_cudart():
    return next((f"{d}/libcudart_static.a" for d in [*toolkit_dirs()[1], *library_dirs()]
                 if os.path.exists(f"{d}/libcudart_static.a")), None)


def use_cudnn():
    return os.environ.get("CUDNN", "1") != "0"


def cuda_ready():
    if not nvcc():
        return "no CUDA compiler (nvcc) on PATH, in CUDA_HOME or in the Python packages"
    if cuda_version() < (12, 4):
        return f"{nvcc()} is CUDA {cuda_version()[0]}.{cuda_version()[1]}; 12.4 is the oldest that works"
    # cuDNN is opened at run time, if it is there: the headers are enough.
    needed = [("cublasLt.h", "cublasLt"), *([("cudnn.h", None), ("cudnn_frontend.h", None)] if use_cudnn() else [])]
    for header, library in needed:
        if not find_header(header):
            return f"nvcc is here, {header} is not"
        if library and not find_library(library):
            return f"nvcc is here, {soname(library)} is not"
    if not find_cudart():
        return "nvcc is here, libcudart_static.a is not"
    return "yes"


def forget():
    for function in (wheel_dirs, nvcc, cuda_version, toolkit_dirs, include_dirs, library_dirs):
        function.cache_clear()


def supported_archs():
    _, text = run(nvcc(), "--list-gpu-arch") if nvcc() else (None, "")
    return sorted({int(a) for a in re.findall(r"^compute_(\d+)$", text, re.M)})


def gpu_archs():
    """Compute capabilities of the GPUs here, as ["90"]; [] when there is any doubt about the answer.
    A missing driver makes nvidia-smi print an error, with some versions at exit status 0."""
    status, text = run("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", timeout=20)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if status != 0 or not lines or not all(re.fullmatch(r"\d{1,2}\.\d", line) for line in lines):
        return []
    return [str(a) for a in sorted({int(line.replace(".", "")) for line in lines})]


def archs():
    if chosen := os.environ.get("CUDA_ARCHS", "").replace(",", " ").split():
        for arch in chosen:
            if not re.fullmatch(r"[1-9]\d{1,2}[af]?", arch):
                stop(f"CUDA_ARCHS has {arch!r}; expected numbers like 80 or 90, e.g. CUDA_ARCHS=\"80 90\".")
        return chosen
    known = supported_archs()
    found = gpu_archs()
    if found and known:
        # A GPU newer than the compiler runs the PTX of the newest architecture that it knows.
        found = list(dict.fromkeys(str(max((k for k in known if k <= int(a)), default=0)) for a in found))
        if "0" in found:
            stop(f"This nvcc compiles for architectures {known[0]} and up, the GPU here is {', '.join(gpu_archs())}: "
                 "use an older CUDA toolkit, or choose others with CUDA_ARCHS=...")
    return found or DEFAULT_ARCHS


def arch_options():
    """Machine code for each architecture, and PTX of the last for GPUs that came later. 9.0 has warpgroup
    products in its own target only (sm_90a), whose PTX no later GPU runs: that comes from plain compute_90."""
    chosen = archs()
    for arch in chosen:
        target = "90a" if arch == "90" else arch
        together = arch == chosen[-1] and target == arch
        yield f"-gencode=arch=compute_{target},code={f'[sm_{target},compute_{target}]' if together else f'sm_{target}'}"
        if arch == chosen[-1] and not together:
            yield f"-gencode=arch=compute_{arch},code=compute_{arch}"


# -- compiler options -----------------------------------------------------------------------------

# No errno or traps from maths: both block vectorisation, neither changes a value. Not -ffast-math,
# which does, and not -march=native: the library must run on the CPU that it is copied to.
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
          "-Wall", "-Wextra", "-I."]
WARN_HOST = "-Xcompiler=-fPIC,-fvisibility=hidden,-fno-math-errno,-fno-trapping-math,-Wall,-Wextra"
LINK = ["-shared", "-Wl,--no-undefined", "-Wl,--as-needed", "-Wl,--exclude-libs,ALL"]


def openblas():
    if not importlib.util.find_spec("scipy_openblas32"):
        stop("The Python package scipy-openblas32 (BLAS) is missing: run \"make deps\".")
    import scipy_openblas32 as blas
    return blas.get_include_dir(), blas.get_lib_dir(), blas.get_library()


def check_compiler():
    cxx = os.environ.get("CXX", "g++")
    if not shutil.which(cxx.split()[0]):
        stop(f"There is no C++ compiler \"{cxx}\": apt install g++, or choose one with CXX=...")
    version = run(*cxx.split(), "--version")[1].splitlines()[0]
    return cxx, version


def cpu_compile():
    return [*COMMON, "-fopenmp", "-isystem", openblas()[0]]


def cpu_link():
    _, folder, name = openblas()
    # Absolute: the environment it was built with. Relative: the library beside site-packages' others.
    return [*LINK, "-fopenmp", f"-L{folder}", f"-l{name}", f"-Wl,-rpath,{folder}",
            "-Wl,-rpath,$ORIGIN/../scipy_openblas32/lib"]


def cuda_defines():
    if (state := cuda_ready()) != "yes":
        stop(f"The CUDA library can't be built: {state}. \"make cuda\" installs what is missing.")
    yield "-DLLMC_CUDA"
    if use_cudnn():
        yield "-DLLMC_CUDNN"
    if find_header("nccl.h") and find_library("nccl"):
        yield "-DLLMC_NCCL"


def cuda_includes():
    own, common = include_dirs()
    return [*(f"-I{d}" for d in own), *(word for d in common for word in ("-isystem", d))]


def cuda_host():
    """The .cpp files of the CUDA library. No OpenMP: a GPU machine may lack its runtime."""
    return [*COMMON, "-fopenmp-simd", "-Wno-unknown-pragmas", *cuda_defines(), *cuda_includes()]


def cuda_device():
    return ["-std=c++17", "-O3", "-lineinfo", "--threads=0", "-I.", WARN_HOST, *arch_options(), *cuda_defines(),
            *cuda_includes()]


def cuda_link():
    list(cuda_defines())
    libraries = [path for path in map(find_library, ["cublasLt", "nccl"]) if path]
    folders = list(dict.fromkeys(os.path.dirname(path) for path in [*libraries, find_library("cudnn")] if path))
    beside = [f"$ORIGIN/../nvidia/{d}/lib" for d in (["cu13"] if cuda_version()[0] >= 13 else ["cublas", "cuda_nvrtc"])]
    rpath = [*folders, *beside, "$ORIGIN/../nvidia/cudnn/lib", "$ORIGIN/../nvidia/nccl/lib"]
    # By full path: what is recorded is the soname, so any folder that has it will do at run time.
    return [*LINK, *libraries, find_cudart(), "-lpthread", "-ldl", "-lrt", *(f"-Wl,-rpath,{d}" for d in rpath)]


KINDS = {"cpu-compile": cpu_compile, "cpu-link": cpu_link, "cuda-host": cuda_host, "cuda-device": cuda_device,
         "cuda-link": cuda_link}


def quote(word):
    """For an options file, as g++ and nvcc read them."""
    if re.fullmatch(r"[\w@%+=:,./$\[\]-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def write(path, kind, extra):
    """Options go through a file, which is a prerequisite like any other: what they were made from
    (interpreter, compiler, packages, GPUs) may change, and objects must follow, but only then."""
    cxx, version = check_compiler()
    text = "\n".join(quote(word) for word in KINDS[kind]()) + "\n"
    note = f"{cxx}: {version}\n{nvcc() if 'cuda' in kind else ''}\n{' '.join(extra)}\n{text}"
    path, memo = Path(path), Path(f"{path}.from")
    if path.exists() and memo.exists() and memo.read_text() == note:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    memo.write_text(note)


def main(command="", *rest):
    if command == "install" and rest:
        with open(__file__) as one_at_a_time:  # a parallel make may ask for two extras at once
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            for extra in rest:
                install(extra)
    elif command == "archs":
        print(*archs())
    elif command == "cuda-ready":
        print(cuda_ready())
    elif command == "write" and len(rest) > 1 and rest[1] in KINDS:
        write(rest[0], rest[1], rest[2:])
    else:
        stop(__doc__.strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
