"""What conv2d and prepare need of a GPU, for tests without one: tensors, contexts, and launches that are recorded."""

from types import SimpleNamespace

import torch

from cuconv.arrays import TorchArrays


class TensorsOfGpu3(TorchArrays):
    """CPU tensors in the place of GPU 3's; a tensor that requires a gradient counts as one of GPU 4."""

    def __init__(self):
        super().__init__(torch)
        self.stream = 77
        self.synchronized = 0
        self.readers = []  # (addresses of arrays, stream), as torch is told by record_stream

    def check(self, name, tensor, contiguous=True):
        pass

    def device(self, tensor):
        return 3 + tensor.requires_grad

    def current_stream(self, device):
        return lambda: (self.stream, device)

    def allocator(self, shape, device):
        return lambda: torch.empty(shape)

    def kept(self, arrays, device):
        return Kept(self, arrays)

    def zeros(self, count, device):
        return torch.zeros(count)

    def synchronize(self, device):
        self.synchronized += 1


class Kept:
    """TorchKept, for tensors that are on no GPU."""

    def __init__(self, library, arrays):
        self._library, self._addresses = library, tuple(array.data_ptr() for array in arrays)
        self.known = set()

    def read_by(self, stream, capture):
        self._library.readers.append((self._addresses, stream))
        self.known.add(stream)


class FakeCuda:
    """cupy.cuda of a machine with several GPUs, of which GPU 0 is current; a context is a number."""

    def __init__(self):
        self.capture = 0  # the number of the capture that every stream is in
        self.devices = [0]  # the GPUs that were made current, in order
        self.runtime = SimpleNamespace(
            getDevice=lambda: self.devices[-1], setDevice=lambda device: self.devices.append(device)
        )
        self.driver = SimpleNamespace(ctxGetCurrent=lambda: 1000 + self.devices[-1])


class Recorder:
    """A LaunchSequence that launches nothing: it records what is prepared and what is enqueued."""

    made, enqueued = [], []

    def __init__(self, launches, arch, device):
        self.launches = launches
        Recorder.made.append((launches, arch, device))

    def enqueue(self, stream, *addresses, **packed):
        Recorder.enqueued.append((self.launches, stream, (*addresses, *packed.values())))
