"""What is read from DataLoaders, pass by pass, and how many samples go into each step."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from torch.utils.data.distributed import DistributedSampler

from .batch_samples import count_read
from .loader_passes import LoaderPasses, own_part
from .sampling import ReadOrder
from .shuffles import Shuffles, shuffled_length


class Reading:
    """Notes every pass over a loader. ``source`` is the pass that the last batch came from, None before the first."""

    def __init__(self) -> None:
        self.shuffles = Shuffles()
        self.source: dict[str, Any] | None = None
        self.batch = 0
        """How many samples the last batch had."""
        self.is_share = False
        """Whether that was a rank's share of a batch, dealt by a ``DistributedSampler``."""
        self._loaders = LoaderPasses()
        self._passes: list[dict[str, Any]] = []
        self._step_samples: list[int] = []
        self._samples = 0

    def begin(self, loader: Any, rounds: int) -> dict[str, Any]:
        """``loader`` is iterated, when ``rounds`` have begun; what is noted of the pass."""
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None) or loader.sampler
        shares = isinstance(sampler, DistributedSampler)
        noted: dict[str, Any] = {
            **self._loaders.begin(loader)._asdict(),
            "batches": 0,
            "samples": 0,
            "finished": False,
            "rounds": rounds,
            "order": ReadOrder(own_part(loader.dataset)),
            "steps": 0,
            "drawn_from": self.shuffles.drawn_from(loader),
            "shuffled": shuffled_length(loader),
            "sampler_epoch": sampler.epoch if shares else None,
            "sampler_seed": sampler.seed if shares and sampler.shuffle else None,
        }
        self._passes.append(noted)
        return noted

    def got_batch(self, noted: dict[str, Any], batch: Any) -> None:
        """The loader gave a batch."""
        samples = count_read(batch, noted["order"].size(noted["batches"]))
        self.batch, self.is_share = samples, noted["sampler_epoch"] is not None
        noted["batches"] += 1
        noted["samples"] += samples
        if noted is not self.source:  # what was read for something else
            self.source, self._samples = noted, 0
        self._samples += samples

    @property
    def has_stepped(self) -> bool:
        """Whether a step was made."""
        return bool(self._step_samples)

    def stepped(self) -> None:
        """A step is made of what was read since the last."""
        self._step_samples.append(self._samples)
        self._samples = 0
        if self.source is not None:
            self.source["steps"] += 1

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        passes = [
            one
            | {"order": one["order"].first(one["batches"])}
            | one["order"].in_whole(one["batches"])
            for one in self._passes
        ]
        return {"loader_passes": passes, "step_samples": self._step_samples}
