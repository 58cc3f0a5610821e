"""TensorBoard's event files, written with the package's own record format and messages.

Not through a SummaryWriter: TensorBoard has none without torch or TensorFlow, and tensorboardX hands events to a thread
whose failure nobody hears of. Here a record is on disk, or its error raised, when the call returns.
"""

import os
import socket
import time
from pathlib import Path

from ..errors import InvalidArgument, Unavailable


class TensorBoard:
    """A backend (see the package). folder: for the event file; None: the run's, beside its logs."""

    name = "TensorBoard"

    def __init__(self, folder=None):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.plugins.hparams import metadata as hparams
            from tensorboard.plugins.hparams import plugin_data_pb2
            from tensorboard.plugins.text import metadata as text
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise Unavailable(f"logging to TensorBoard needs its package: pip install tensorboard ({error})") from None
        self._event, self._summary, self._tensor, self._types = event_pb2, summary_pb2, tensor_pb2, types_pb2
        self._hparams, self._plugin_data, self._text_plugin = hparams, plugin_data_pb2, text
        self._record_writer, self._folder, self._records = RecordWriter, folder, None

    def open(self, run):
        folder = self._folder or run.folder
        if folder is None:
            raise InvalidArgument("TensorBoard needs a folder: TensorBoard(folder), or run_dir for the run")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = self._record_writer(open(folder / stem, "xb"))
        self._write(file_version="brain.Event:2")
        # For the reader: whatever earlier files hold from this step on is void.
        restart = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(step=run.first_step, session_log=restart)
        self._write(step=run.first_step, summary=self._summary.Summary(value=[self._hyper_parameters(run.config)]))

    def scalars(self, step, values):
        values = [self._summary.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step=step, summary=self._summary.Summary(value=values))

    def text(self, step, name, content):
        shown = "\n".join(f"    {line}" for line in content.split("\n"))  # Markdown: to be shown as it is
        tensor = self._tensor.TensorProto(dtype=self._types.DT_STRING, string_val=[shown.encode()])
        about = self._text_plugin.create_summary_metadata(display_name=None, description=None)
        value = self._summary.Summary.Value(tag=name, tensor=tensor, metadata=about)
        self._write(step=step, summary=self._summary.Summary(value=[value]))

    def close(self, error):
        if self._records is not None:
            self._records.close()

    def _hyper_parameters(self, config):
        start = self._plugin_data.SessionStartInfo(start_time_secs=time.time())
        for name, value in config.items():
            kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
            setattr(start.hparams[name], kind, value)
        about = self._hparams.create_summary_metadata(self._plugin_data.HParamsPluginData(session_start_info=start))
        return self._summary.Summary.Value(tag=self._hparams.SESSION_START_INFO_TAG, metadata=about)

    def _write(self, **fields):
        self._records.write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()
