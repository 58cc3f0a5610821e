import os
import pathlib

import engine
import pytest

from pyllmc.errors import LibraryNotFound

HERE = pathlib.Path(__file__).resolve().parent
MICRO = HERE / "golden" / "micro"


def pytest_addoption(parser):
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail when no test marked gpu has run, instead of passing with all of them skipped",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs the CUDA library and a device")
    config.addinivalue_line("markers", "parity: needs torch and transformers (extra: parity)")
    config.gpu_tests_run = 0


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call" and item.get_closest_marker("gpu") and not outcome.get_result().skipped:
        item.config.gpu_tests_run += 1


def pytest_sessionfinish(session):
    if session.config.option.require_gpu and not session.config.gpu_tests_run:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.option.require_gpu and not config.gpu_tests_run:
        terminalreporter.write_line(f"FAILED: no GPU test ran: {no_gpu_because() or 'none was selected'}", red=True)


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
