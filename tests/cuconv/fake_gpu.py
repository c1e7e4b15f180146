"""What conv2d and prepare need of a GPU, for tests without one: tensors, contexts, and launches that are recorded."""

import torch

from cuconv.runtime.arrays import TorchArrays


class TensorsOfGpu3(TorchArrays):
    """CPU tensors in the place of GPU 3's; a tensor that requires a gradient counts as one of GPU 4."""

    def __init__(self):
        super().__init__(torch)
        self.stream = 77
        self.synchronized = 0
        self.allocated, self.empty = [], torch.empty
        self.readers = []  # (addresses of arrays, stream), as torch is told by record_stream

    def check(self, name, tensor, contiguous=True):
        pass

    def device(self, tensor):
        return 3 + tensor.requires_grad

    def current_stream(self, device):
        return lambda: (self.stream, device)

    def allocator(self, shape, device, element="fp32", channels_last=False):
        def new():
            made = self.empty(shape).to(self._types[element])
            if channels_last:
                made = made.to(memory_format=torch.channels_last)
            self.allocated.append(made)
            return made

        return new

    def lifetime(self, arrays, device):
        return Kept(self, arrays)

    def zeros(self, count, device):
        return torch.zeros(count)

    def synchronize(self, device):
        self.synchronized += 1


class Kept:
    """TorchLifetime, for tensors that are on no GPU."""

    def __init__(self, library, arrays):
        self._library, self._addresses = library, tuple(array.data_ptr() for array in arrays)
        self.known = set()

    def record_use(self, stream, capture):
        self._library.readers.append((self._addresses, stream))
        self.known.add(stream)


class FakeCuda:
    """libcuda of a machine with several GPUs, of which GPU 0 is current; GPU n has the context 1000 + n."""

    def __init__(self):
        self.capture = 0  # the number of the capture that every stream is in
        self.devices = [0]  # the GPUs that were made current, in order; None for no context

    def cuCtxGetCurrent(self, context):
        context[0] = 0 if self.devices[-1] is None else 1000 + self.devices[-1]
        return 0

    def cuCtxGetDevice(self, device):
        device._obj.value = self.devices[-1]
        return 0

    def cuCtxSetCurrent(self, context):
        self.devices.append(context.value and context.value - 1000)
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1000 + device
        return 0


class Recorder:
    """A LaunchSequence that launches nothing: it records what is prepared and what is enqueued."""

    made, enqueued = [], []

    def __init__(self, launches, arch, device):
        self.launches = launches
        Recorder.made.append((launches, arch, device))

    def enqueue(self, stream, *addresses, **packed):
        Recorder.enqueued.append((self.launches, stream, (*addresses, *packed.values())))
