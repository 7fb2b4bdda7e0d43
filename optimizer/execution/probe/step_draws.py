"""What is drawn behind a step of an optimizer: the same, however the steps of a round and the gradients for them are arranged."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from .randomness import States, derive, device_generators, seed_everything


class StepDraws:
    """Seeds the generators after every step: by the round, and by how many of its steps something was drawn before.

    Two networks that learn from each other may take their gradients before either steps, of one sum of their losses, or one behind the
    other's step; two optimizers may be one. Where nothing is drawn between the steps of a round, that shows in no draw. A generator that is trained on
    noise of its own, drawn behind the discriminator's step, gets other noise than that one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._round = self._again = 0
        self._fresh: States | None = None

    def stepped(self, finished: int, *, first: bool, evaluated: bool = False) -> tuple[int, ...]:
        """An optimizer has stepped behind so many ``finished`` rounds, as the ``first`` of its own or not; ``evaluated`` tells that modules have drawn
        while they were evaluated. What the generators were seeded by."""
        if first or self._fresh is None:
            self._round, self._again = finished + 1, 0
        elif evaluated or States(device_generators()) != self._fresh:
            self._round, self._again = finished + 1, self._again + 1
        after = (self._round, self._again) if self._again else (self._round,)
        seed_everything(derive(self._seed, "step", *after))
        self._fresh = States(device_generators())
        return after
