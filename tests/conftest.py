import os
import pathlib

import engine
import pytest

from pyllmc.errors import LibraryNotFound

HERE = pathlib.Path(__file__).resolve().parent
MICRO = HERE / "golden" / "micro"


def pytest_configure(config):
    config.addinivalue_line("markers", "parity: needs torch and transformers (extra: parity)")


def no_gpu_because():
    """Why tests on a GPU can't run here; "" if they can."""
    try:
        lib = engine.load("cuda")
    except LibraryNotFound as error:
        return str(error)
    count = engine.ffi.new("int32_t *")
    if lib.llmc_device_count(count) or count[0] == 0:
        return f"no CUDA device: {engine.message(lib) or 'the driver counts 0'}"
    return ""


def need_cuda():
    reason = no_gpu_because()
    if reason:
        pytest.skip(reason)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Name of each backend in turn; CUDA only where it can run."""
    if request.param == "cuda":
        need_cuda()
    else:
        engine.load("cpu")  # its absence is an error: `make` builds it anywhere
    return request.param


@pytest.fixture(scope="session")
def cuda():
    need_cuda()
    return "cuda"


@pytest.fixture(scope="session")
def golden():
    """Folder of the larger reference files: $PYLLMC_GOLDEN, or golden in `shared` beside the checkout."""
    folder = pathlib.Path(os.environ.get("PYLLMC_GOLDEN") or HERE.parents[1] / "shared" / "golden")
    if not folder.is_dir():
        pytest.skip(f"reference files are absent: no folder {folder} (PYLLMC_GOLDEN names another)")
    return folder


@pytest.fixture(scope="session")
def shakespeare(golden):
    """Folder of the tokenized Tiny Shakespeare shards: $PYLLMC_DATA, or `data` beside the reference files."""
    folder = pathlib.Path(os.environ.get("PYLLMC_DATA") or golden.parent / "data")
    if not (folder / "tinyshakespeare_gpt2_train.bin").is_file():
        pytest.skip(f"no tinyshakespeare_gpt2_train.bin in {folder} (PYLLMC_DATA names another folder)")
    return folder
