"""Finds the pipeline that the arguments of a `pipeline` command name."""

from jobrunner.cli.options import modules_or_configured
from jobrunner.errors import PipelineError
from jobrunner.etl.pipeline import Pipeline, all_pipelines, find_pipeline
from jobrunner.jobs.registry import load_modules


def loaded_pipeline(name: str, modules: tuple[str, ...]) -> Pipeline:
    """The pipeline of that name in these modules, else in those of [tool.jobrunner]. Raises PipelineError."""
    chosen = modules_or_configured(modules)
    if not chosen and not all_pipelines():
        raise PipelineError(
            f"no module that declares pipeline {name!r} is named; write it behind the name, or modules = [...] in "
            "[tool.jobrunner]"
        )
    load_modules(chosen)
    return find_pipeline(name)
