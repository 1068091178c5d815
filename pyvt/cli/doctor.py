"""``pyvt doctor``: the machine, the backends that load, and whether their kernels are right."""

import json
import os
import platform
from dataclasses import asdict
from importlib import import_module
from typing import Any

import click

import pyvt
from pyvt import backends
from pyvt.engine.memory_plan import best_backend
from pyvt.errors import KernelError
from pyvt.tensor.cores import cpu_quota
from pyvt.tensor.memory import available_host_bytes

SELF_TEST_S = 3.0


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=SELF_TEST_S,
    show_default=True,
    help="time for the self-test; one case of every kernel runs in any case",
)
@click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else")
def doctor(seconds: float, is_json: bool) -> int:
    """Show the machine, the backends that load, and test their kernels against the reference.

    Exit code 1 where a kernel is wrong, or PYVT_CPU_ISA asks for a level that is not there. A
    backend that is not there is no fault: the reference computes.
    """
    facts = _facts()
    facts["self_tests"] = {
        name: asdict(_testing("self_test").self_test(name, seconds))
        for name, state in facts["backends"].items()
        if state["is_usable"]
    }
    default = facts["backends"].get(facts["default"], {"is_usable": True})
    is_wrong = not default["is_usable"] or any(
        result["failures"] for result in facts["self_tests"].values()
    )
    if is_json:
        click.echo(json.dumps(facts))
    else:
        _show(facts)
    return 1 if is_wrong else 0


def _facts() -> dict[str, Any]:
    """Return what can be known without computing."""
    machine = asdict(_testing("record").this_machine())
    names = (*backends.BACKENDS, *backends.DEVICE_BACKENDS)
    usable = {name: backends.why_not(name) for name in names}
    # Only who has built what plays a device wants to hear of it.
    usable = {
        name: reason
        for name, reason in usable.items()
        if reason is None or name not in backends.SIMULATED
    }
    native: dict[str, Any] = {}
    if "cpu" in usable and usable["cpu"] is None:
        try:
            native = _native_facts()
        except KernelError as error:  # a level that PYVT_CPU_ISA asks for and the CPU lacks
            usable["cpu"] = str(error)
    return {
        "pyvt": pyvt.__version__,
        "python": platform.python_version(),
        "numpy": import_module("numpy").__version__,
        "system": f"{machine['system']} {platform.machine()}",
        "cpu": machine["cpu"],
        "features": machine["isa"],
        "threads": {
            "cores": os.cpu_count(),
            "affinity": machine["num_cpus"],
            "quota": cpu_quota(),
        },
        "memory": {
            "total_gib": machine["memory_gib"],
            "available_gib": round(available_host_bytes() / 2**30, 1),
        },
        "backends": {
            name: {
                "is_usable": reason is None,
                "why_not": reason,
                "build": backends.build_note(name),
                "is_simulated": name in backends.SIMULATED,
                **(native if name == "cpu" else {}),
                **(_device_facts(name) if reason is None else {}),
            }
            for name, reason in usable.items()
        },
        "default": best_backend(),
    }


def _native_facts() -> dict[str, Any]:
    native = import_module("pyvt.backends.cpu").native()
    return {
        "isa": native.isa(),
        "isa_levels": native.isa_names().split(),
        "threads": native.num_threads(),
        "num_kernels": len(native.OPS),
    }


def _device_facts(name: str) -> dict[str, Any]:
    """Return what is known of the device of a usable backend, nothing for one of the host."""
    if name not in backends.DEVICE_BACKENDS:
        return {}
    native = import_module(backends.DEVICE_BACKENDS[name]).native()
    free, total = native.memory()
    return {
        "device": native.device_name(),
        "free_gib": round(free / 2**30, 1),
        "total_gib": round(total / 2**30, 1),
        "why_no_cublas": native.why_no_cublas(),
    }


def _show(facts: dict[str, Any]) -> None:
    threads, memory = facts["threads"], facts["memory"]
    quota = "no quota" if threads["quota"] is None else f"quota {threads['quota']:g}"
    lines = {
        "pyvt": f"{facts['pyvt']}, Python {facts['python']}, NumPy {facts['numpy']}",
        "system": facts["system"],
        "cpu": f"{facts['cpu']} ({facts['features']})",
        "threads": f"{threads['cores']} cores, {threads['affinity']} by affinity, {quota}",
        "memory": f"{memory['available_gib']} of {memory['total_gib']} GiB available",
        "default": f"backend {facts['default']}",
    }
    for name, state in facts["backends"].items():
        lines[f"backend {name}"] = _backend_line(state)
    for name, result in facts["self_tests"].items():
        lines[f"self-test {name}"] = _test_line(result)
    width = max(map(len, lines))
    for name, text in lines.items():
        click.echo(f"{name.ljust(width)}  {text}")
    for result in facts["self_tests"].values():
        for failure in result["failures"]:
            click.echo(f"WRONG {failure}")


def _backend_line(state: dict[str, Any]) -> str:
    if not state["is_usable"]:
        return f"not usable: {state['why_not']}"
    if state["is_simulated"]:
        return "usable, SIMULATED: plays a device on the CPU, for tests"
    if "device" in state:
        products = f"own kernels: {why}" if (why := state["why_no_cublas"]) else "cuBLASLt"
        return (
            f"{state['device']}, {state['free_gib']} of {state['total_gib']} GiB free, products by "
            f"{products} ({state['build']})"
        )
    if "isa" not in state:
        return f"usable ({state['build']})"
    levels = " ".join(state["isa_levels"])
    return (
        f"{state['num_kernels']} ops on {state['threads']} threads, {state['isa']} of {levels} "
        f"({state['build']})"
    )


def _test_line(result: dict[str, Any]) -> str:
    count = sum(result["num_cases"].values())
    kinds = len(result["num_cases"])
    left = f", {result['num_left_out']} left out for time" if result["num_left_out"] else ""
    verdict = f"{len(result['failures'])} wrong" if result["failures"] else "all equal"
    return (
        f"{count} cases of {kinds} kernels against the reference in {result['seconds']:.1f} s: "
        f"{verdict}{left}"
    )


def _testing(module: str) -> Any:
    """Return a module of ``pyvt.testing``; only a run pays for its import."""
    return import_module(f"pyvt.testing.{module}")
