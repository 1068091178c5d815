"""StepPlan: a step while it is decided: the budget left and the grants in row order."""

from pyvt.messages import BlockIds, CachedRequestData, NewRequestData
from pyvt.scheduler.request import Request


class StepPlan:
    """The grants of one step.

    Attributes:
        budget: tokens that can still be granted.
        granted: tokens of each request.
        new: requests that are sent whole.
        cached: requests that are sent as a difference.
        drafts: tokens to verify, of requests that have any in this step.
    """

    __slots__ = ("_now_s", "budget", "cached", "drafts", "granted", "new")

    def __init__(self, budget: int, now_s: float) -> None:
        self._now_s = now_s
        self.budget = budget
        self.granted: dict[str, int] = {}
        self.new: dict[str, NewRequestData] = {}
        self.cached: dict[str, CachedRequestData] = {}
        self.drafts: dict[str, tuple[int, ...]] = {}

    def grant(self, request: Request, num_tokens: int, new_ids: BlockIds) -> None:
        """Put a request into the step; ``new_ids`` are blocks that the worker does not know."""
        request_id = request.request_id
        self.budget -= num_tokens
        self.granted[request_id] = num_tokens
        if request.is_known_to_worker:
            self.cached[request_id] = CachedRequestData(
                request_id, new_ids, request.num_computed_tokens
            )
            return
        request.is_known_to_worker = True
        if request.scheduled_s is None:
            request.scheduled_s = self._now_s
        assert request.blocks is not None, "a request that runs holds blocks"
        self.new[request_id] = NewRequestData(
            request_id=request_id,
            prompt_token_ids=request.core.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            sampling_params=request.core.sampling_params,
            eos_token_ids=request.core.eos_token_ids,
            block_ids=tuple(tuple(table) for table in request.blocks.tables),
            num_computed_tokens=request.num_computed_tokens,
            constraints=request.core.constraints,
        )

    def revoke(self, request: Request) -> None:
        """Take back the grant of a request that is preempted in the step; it may have none."""
        request_id = request.request_id
        self.budget += self.granted.pop(request_id, 0)
        self.new.pop(request_id, None)
        self.cached.pop(request_id, None)
        self.drafts.pop(request_id, None)
