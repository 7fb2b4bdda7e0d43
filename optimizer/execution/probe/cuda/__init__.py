"""CUDA devices for a machine that has none: a script written for CUDA runs on the CPU and fails where CUDA would.

Tensors stay plain ``torch.Tensor`` on the CPU. Which device a tensor is on is noted on its *storage* (:mod:`.marks`),
so that views, ``detach`` and ``.data`` share it, as on real devices. A dispatch mode (:mod:`.mode`) sees every
operation below autograd, the backward ones included: it passes the device on to what the operation makes, and raises
where CUDA would for tensors of different devices. What Python code asks of devices is answered by replaced functions:
:mod:`.tensors` (``torch.Tensor``), :mod:`.creation`, :mod:`.storages`, :mod:`.management` (``torch.cuda``),
:mod:`.streams`, :mod:`.legacy_types` (``torch.cuda.FloatTensor``), :mod:`.autocast` and :mod:`.parallel`.

docs/emulation.md lists what is emulated and what is not.
"""
