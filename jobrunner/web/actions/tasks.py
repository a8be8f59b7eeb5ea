"""Actions on one task, on selected tasks, and on all that match."""

from typing import Any

from jobrunner.broker.calls import tasks
from jobrunner.broker.keys import check_id, split_queue, tag_of_id
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.inspector.search import STATES, Filter
from jobrunner.task import TaskRecord, TaskState
from jobrunner.web import operations
from jobrunner.web.actions.start_operation import begin
from jobrunner.web.context import Context
from jobrunner.web.errors import NotAllowed, NotThere, Refused
from jobrunner.web.parameters import RequestParameters
from jobrunner.web.roles import Role
from jobrunner.web.routing import Action, Done

_AT_ONCE = 500
_SAID = {"requeue": "requeued", "cancel": "cancelled or asked to stop", "delete": "deleted"}


def _requeue(context: Context) -> Done:
    record = _task(context)
    return _done(
        context, record, operations.requeue(context.client, record.queue, [record.id]), "goes back to its queue"
    )


def _cancel(context: Context) -> Done:
    record = _task(context)
    said = "is asked to stop" if record.state is TaskState.PENDING else "is cancelled"
    return _done(context, record, operations.cancel(context.client, record.queue, [record.id]), said)


def _delete(context: Context) -> Done:
    record = _task(context)
    count = operations.delete(context.client, record.queue, [record.id])
    if not count:
        raise Refused(f"task {record.id} is not deleted: a worker has it, or it is gone already")
    there = context.url("queue", queue=record.queue) or context.url("tasks")
    return Done(text=f"task {record.id} is deleted", to=there)


def _run_now(context: Context) -> Done:
    record = _task(context)
    return _done(context, record, context.client.queue(record.queue).run_now(record.id), "waits now")


def _replay(context: Context) -> Done:
    record = _task(context)
    new_id = context.client.queue(record.queue).replay(record.id)
    there = context.url("task", task=new_id)
    return Done(text=f"task {record.id} runs again as {new_id}", to=there, values={"id": new_id})


def _bulk(context: Context) -> Done:
    form = context.form
    action = form.choice("action", operations.BULK, "")
    if not action:
        raise Refused(f"no action is given: action is one of {', '.join(operations.BULK)}")
    if form.flag("all"):
        wanted = wanted_of(form)
        if action == "delete" and context.role < Role.ADMIN:
            raise NotAllowed("deleting all that match requires the role admin; select single tasks, or ask an admin")
        return begin(context, action, wanted, f"{action}: all that match")
    chosen = [_chosen(text) for text in form.all("ids", most=_AT_ONCE + 1, longest=1000)]
    if not chosen:
        raise Refused("no task is selected")
    if len(chosen) > _AT_ONCE:
        raise Refused(f"too many tasks are selected: at most {_AT_ONCE}; select all that match instead")
    return _at_once(context, action, chosen)


def _at_once(context: Context, action: str, chosen: list[tuple[str, str]]) -> Done:
    by_queue: dict[str, list[str]] = {}
    for queue, task_id in chosen:
        by_queue.setdefault(queue, []).append(task_id)
    change: Any = getattr(operations, action)
    done = sum(change(context.client, queue, ids) for queue, ids in by_queue.items())
    text = f"{done} of {len(chosen)} tasks {_SAID[action]}"
    return Done(text=text, to=context.url("tasks"), values={"changed": done, "chosen": len(chosen)})


def wanted_of(form: RequestParameters) -> Filter:
    """The filter of a form. Raises InvalidName."""
    queue = form.text("queue")
    if queue:
        split_queue(queue)
    return Filter(
        queue=queue,
        state=form.choice("state", STATES, ""),
        type=form.text("type"),
        error=form.text("error"),
        id=form.text("id"),
        param=form.text("param"),
    )


def _chosen(text: str) -> tuple[str, str]:
    queue, _, task_id = text.partition(" ")
    split_queue(queue)
    return queue, task_id  # not checked: what has an id that no program gives must be deleted somehow


def _task(context: Context) -> TaskRecord:
    """The task of the path; one with an id of the user's own needs its queue. Raises NotThere, InvalidName."""
    task_id = check_id(context.path("task"))
    queue = context.form.text("queue") or context.query.text("queue") or None
    if queue is None and tag_of_id(task_id) is None:
        raise Refused(f"task id {task_id!r} was not made by jobrunner: name its queue too")
    record = broker_of(context.client).run(tasks.show(keys_of(context.client), task_id, queue=queue))
    if record is None:
        raise NotThere(f"there is no task {task_id}, or no longer")
    return record


def _done(context: Context, record: TaskRecord, count: int, text: str) -> Done:
    if not count:
        raise Refused(f"task {record.id} is {record.state}: nothing was changed")
    own = "" if tag_of_id(record.id) else f"?queue={record.queue}"
    there = context.url("task", task=record.id)
    return Done(text=f"task {record.id} {text}", to=there + own if there else context.url("tasks"))


routes = [
    Action(path="/tasks/bulk", name="tasks.bulk", endpoint=_bulk),
    Action(path="/tasks/{task}/requeue", name="task.requeue", endpoint=_requeue),
    Action(path="/tasks/{task}/cancel", name="task.cancel", endpoint=_cancel),
    Action(path="/tasks/{task}/delete", name="task.delete", endpoint=_delete),
    Action(path="/tasks/{task}/run-now", name="task.run-now", endpoint=_run_now),
    Action(path="/tasks/{task}/replay", name="task.replay", endpoint=_replay),
]
