"""What a scheduler tells of itself."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SchedulerStats:
    """The queues and the cache at one moment; preemptions and the prefix cache since the start.

    Attributes:
        num_running: requests that hold blocks.
        num_waiting: requests that do not.
        num_preemptions: how often a request lost its blocks.
        kv_cache_usage: share of the blocks that are held, 0 to 1.
        prefix_queries: tokens of prompts that were looked for.
        prefix_hits: tokens of them that were found.
        num_kept_blocks: blocks that nobody holds and that may be found again.
        num_evictions: kept blocks that were taken for other tokens.
        num_states: states of linear attention that are held.
        num_free_states: slots of states that a request could take, snapshots included.
        num_kept_states: snapshots of states that nobody holds and that may be found again.
        num_snapshots: snapshots that were made.
        num_state_evictions: kept snapshots that were taken for other states.
    """

    num_running: int
    num_waiting: int
    num_preemptions: int
    kv_cache_usage: float
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_kept_blocks: int = 0
    num_evictions: int = 0
    num_states: int = 0
    num_free_states: int = 0
    num_kept_states: int = 0
    num_snapshots: int = 0
    num_state_evictions: int = 0
