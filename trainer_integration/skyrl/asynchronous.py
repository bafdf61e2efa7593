"""SkyRL's fully asynchronous trainer over our episodes: rollouts go on while the policy is trained.

Like ``seams.py`` this reaches into SkyRL, and is written for the same version of it.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from skyrl.backends.skyrl_train.utils.ppo_utils import get_kl_controller
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, GeneratedOutputGroup, _AsyncStalenessManager
from skyrl.train.generators.base import GeneratorInput, GeneratorOutput
from torchdata.stateful_dataloader import StatefulDataLoader

from trainer_integration.skyrl.generator import EpisodeGenerator, Rollout
from trainer_integration.skyrl.metrics import environment_metrics
from trainer_integration.skyrl.seams import LocalModels, MaskedRows


class GroupGenerator(EpisodeGenerator):
    """Rolls out one group of episodes per call, many calls at a time.

    A group of which every episode failed comes back masked: it says nothing about the others. Any other error is kept
    in ``error`` for the trainer to raise, as SkyRL would end the process at one.
    """

    samples_first = False  # but with the weights that are there when the sandbox is
    error: "asyncio.Future[None] | None" = None

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        if input_batch["batch_metadata"].training_phase == "eval":
            return await super().generate(input_batch)
        try:
            rollouts = await self.play(input_batch)
            # Not a list: SkyRL concatenates those of the groups.
            return self.output(input_batch, rollouts) | {"rollouts": tuple(rollouts)}
        except Exception as error:
            assert self.error is not None, "a group is rolled out by AsynchronousTrainer"
            if not self.error.done():
                self.error.set_exception(error)
            await asyncio.Event().wait()  # until the trainer, which raises the error, cancels this
            raise


class Passes:
    """A data set gone through several times, in another order each time, as one long data set.

    SkyRL waits for all rollouts at the end of an epoch. With few tasks that would be after each step, so that an epoch
    here is the whole training.
    """

    def __init__(self, rows: Any, passes: int, seed: int) -> None:
        """``rows``: a data set as SkyRL's PromptDataset."""
        self._rows, self._passes, self._seed = rows, passes, seed
        self._order: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return self._passes * len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, place = divmod(index, len(self._rows))
        if self._order[0] != number:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{number}").shuffle(order)
            self._order = (number, order)
        row = self._rows[self._order[1][place]]
        return row | {"uid": f"{row['uid']}/{index}"}  # a group's name, and what a checkpoint says has been trained on

    def collate_fn(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return self._rows.collate_fn(rows)


class Announcing:
    """A data loader over ``rows``, in order and one at a time, that announces each row ``ahead`` rows before."""

    def __init__(self, rows: Passes, ahead: int, announce: Callable[[list[dict[str, Any]]], None]) -> None:
        self._rows, self._ahead, self._announce = rows, ahead, announce
        self._loader = StatefulDataLoader(rows, batch_size=1, collate_fn=rows.collate_fn)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for number, batch in enumerate(self._loader):
            if number % self._ahead == 0:
                upcoming = range(number + self._ahead, min(number + 2 * self._ahead, len(self._rows)))
                if upcoming:
                    self._announce([self._rows[index] for index in upcoming])
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """See StatefulDataLoader.state_dict."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See StatefulDataLoader.load_state_dict."""
        self._loader.load_state_dict(state)


class InOrder:
    """A queue of finished groups, given out in the order in which they were begun.

    A step then has the tasks that it would have without asynchrony. In the order in which groups end, quick tasks come
    first, and where tasks are few a step may have one of them twice and another not at all.
    """

    def __init__(self, queue: "asyncio.Queue[GeneratedOutputGroup]", first: int) -> None:
        """``first``: index in ``Passes`` of the first group."""
        self._queue, self._next = queue, first
        self._held: dict[int, GeneratedOutputGroup] = {}

    def qsize(self) -> int:
        return self._queue.qsize() + len(self._held)

    def empty(self) -> bool:
        """Whether ``get_nowait`` has nothing to give, be there later groups or not."""
        while not self._queue.empty():
            self._hold(self._queue.get_nowait())
        return self._next not in self._held

    async def get(self) -> GeneratedOutputGroup:
        while self.empty():
            self._hold(await self._queue.get())
        return self.get_nowait()

    def get_nowait(self) -> GeneratedOutputGroup:
        group = self._held.pop(self._next)
        self._next += 1
        return group

    def _hold(self, group: GeneratedOutputGroup) -> None:
        self._held[int(group.uid.rpartition("/")[2])] = group


class InTurn(_AsyncStalenessManager):
    """Lets groups begin in the order in which they asked. Else one could be overtaken until the bound on staleness
    leaves no room for it, and a step that waits for it would wait for ever."""

    def __init__(self, **bounds: int) -> None:
        super().__init__(**bounds)
        self._turn = asyncio.Lock()  # first come, first served; a condition wakes all, and whoever runs first is first

    async def acquire_submission_slot(self) -> None:
        async with self._turn:
            await super().acquire_submission_slot()


class AsynchronousTrainer(MaskedRows, FullyAsyncRayPPOTrainer):
    """SkyRL's fully asynchronous trainer, with groups in order, failed rows masked, and environments of coming groups
    asked for.

    Raises what the generator raised; the first failure if every episode of a step's groups failed.
    """

    epoch: int
    global_step: int
    generator: Any
    train_dataloader: Any

    def __init__(self, cfg: Any, **parts: Any) -> None:
        self._passes = cfg.trainer.epochs
        self._in_order: InOrder | None = None
        cfg = copy.deepcopy(cfg)
        cfg.trainer.epochs = 1  # see Passes
        super().__init__(cfg=cfg, **parts)
        self._staleness_manager = InTurn(
            max_concurrent_generation_groups=self.num_parallel_generation_workers,
            mini_batch_size=self.mini_batch_size,
            max_staleness_steps=self.max_staleness_steps,
        )

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        rows = Passes(self.train_dataset, self._passes, self.cfg.trainer.seed)
        samples = self.cfg.generator.n_samples_per_prompt
        self.train_dataloader = Announcing(
            rows, self.mini_batch_size, lambda upcoming: self.generator.episodes.prefetch(upcoming, samples)
        )
        self.num_steps_per_epoch = len(rows) // self.mini_batch_size
        self.total_training_steps = min(
            self.num_steps_per_epoch, self.cfg.trainer.max_training_steps or self.num_steps_per_epoch
        )

    async def train(self) -> None:
        self.generator.error = asyncio.get_running_loop().create_future()
        if self.cfg.trainer.algorithm.use_kl_in_reward:  # which the base class leaves out
            self.reward_kl_controller = get_kl_controller(self.cfg.trainer.algorithm)
        try:
            await super().train()
        finally:
            self.generator.error.cancel()

    def save_checkpoints(self) -> str:
        # SkyRL saves once more when training has ended, under the number of a step that was never made; a run that is
        # resumed with more steps goes on in the one epoch that there is.
        number, epoch = self.global_step, self.epoch
        self.global_step, self.epoch = min(number, self.total_training_steps), 0
        try:
            return super().save_checkpoints()
        finally:
            self.global_step, self.epoch = number, epoch

    async def _collect_generation_mini_batch(
        self, generation_output_group_buffer: Any, all_generators_done: asyncio.Event
    ) -> Any:
        if self._in_order is None:
            done = len(self.async_train_dataloader.get_consumed_uids_list())  # in a run that goes on
            self._in_order = InOrder(generation_output_group_buffer, done)
        collecting = asyncio.ensure_future(super()._collect_generation_mini_batch(self._in_order, all_generators_done))
        try:
            await asyncio.wait({collecting, self.generator.error}, return_when=asyncio.FIRST_COMPLETED)
            if self.generator.error.done():
                self.generator.error.result()
            return await collecting
        finally:
            collecting.cancel()

    def convert_generation_group_mini_batch_to_training_input(
        self,
        cur_generation_group_mini_batch: list[GeneratedOutputGroup],
        dropped_groups: list[GeneratedOutputGroup] | None = None,
    ) -> Any:
        groups = [*cur_generation_group_mini_batch, *(dropped_groups or [])]
        rollouts: list[Rollout] = [
            rollout for group in groups for rollout in group.generator_output["rollouts"]
        ]  # SkyRL would add up or average what the groups' metrics say
        self.generator.episodes.check(rollouts)
        batch = super().convert_generation_group_mini_batch_to_training_input(
            cur_generation_group_mini_batch, dropped_groups
        )
        self.all_metrics |= environment_metrics(rollouts)
        return batch


class LocalAsynchronousTrainer(LocalModels, AsynchronousTrainer):
    """The same over workers in this process, used inside ``in_process(side_by_side=True)``: policy and sampler are two
    copies of the weights, and each computes in a thread of its own."""
