"""Decides what runs in a step and where its KV lives; never touches tensors."""

from pyvt.scheduler.request import Request, RequestStatus
from pyvt.scheduler.scheduler import Scheduler
from pyvt.scheduler.stats import SchedulerStats

__all__ = ["Request", "RequestStatus", "Scheduler", "SchedulerStats"]
