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

    def check(self, name, tensor):
        pass

    def device(self, tensor):
        return 3 + tensor.requires_grad

    def current_stream(self, device):
        return lambda: (self.stream, device)

    def allocator(self, shape, device):
        return lambda: torch.empty(shape)

    def zeros(self, count, device):
        return torch.zeros(count)

    def synchronize(self, device):
        self.synchronized += 1


class FakeCuda:
    """cupy.cuda of a machine with several GPUs, of which GPU 0 is current; a context is a number."""

    def __init__(self):
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
