"""What executors are sent, and the settings of a session that is not ours: neither needs Spark."""

import ast
import os
import pickle
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.types import StructType
from structlog.testing import capture_logs

from jobrunner.errors import BatchLost, InvalidOption
from jobrunner.spark import shipping
from jobrunner.spark.data_source import JobrunnerSource
from jobrunner.spark.failures import SparkTaskError, error_line, is_never_of_items
from jobrunner.spark.running import set_conf
from jobrunner.spark.shipping import Shipped, sent, ship_package
from jobrunner.spark.source.batch_reader import BatchReader, FilteringReader
from jobrunner.spark.source.options import batch_options, shape_of

WITHOUT_MSGSPEC = """
import pickle, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "msgspec":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
pickle.loads(sys.stdin.buffer.read())
"""


def function_of_ours(number, more):
    yield number + more


def leaseless(_batches):
    try:
        raise KeyError("a")
    except KeyError as error:
        raise BatchLost("b") from error
    yield


@pytest.mark.parametrize("kind", [BatchReader, FilteringReader])
def test_what_is_sent_comes_out_as_itself(kind):
    assert list(pickle.loads(cloudpickle.dumps(Shipped(partial(function_of_ours, 1))))(2)) == [3]
    reader = kind(batch_options({"queue": "orders"}), shape_of(StructType([])))
    again = pickle.loads(cloudpickle.dumps(reader))
    assert type(again) is kind
    assert again._read.options == reader._read.options
    source = pickle.loads(cloudpickle.dumps(JobrunnerSource({"queue": "orders"})))
    assert (type(source), source.options) == (JobrunnerSource, {"queue": "orders"})


def test_an_error_of_ours_on_executors_comes_alone():
    """Behind another one it might be an imitation, in the message of that."""
    with pytest.raises(BatchLost) as caught:
        next(pickle.loads(cloudpickle.dumps(Shipped(leaseless)))(iter(())))
    assert "KeyError" not in "".join(traceback.format_exception(caught.value))


def test_an_executor_that_lacks_a_module_says_so_in_one_line():
    reader = FilteringReader(batch_options({"queue": "orders"}), shape_of(StructType([])))
    both = cloudpickle.dumps((reader, JobrunnerSource({"queue": "orders"})))  # as Spark sends them for a read
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_MSGSPEC], input=both, capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    line = error_line(SparkTaskError(ran.stderr.decode()))
    assert line.startswith("ImportError: executors cannot import jobrunner: No module named 'msgspec' (Python 3.")
    assert 'install "jobrunner-queue[spark]" there' in line
    assert is_never_of_items(SparkTaskError(ran.stderr.decode()))
    head = "Traceback (most recent call last):\n"
    assert is_never_of_items(SparkTaskError(f"{head}ModuleNotFoundError: No module named 'my'"))
    assert not is_never_of_items(SparkTaskError(f"{head}ImportError: of the function's own"))
    assert reader.__reduce__() == sent(reader)


STUB = "def _instance(*_): pass"
OLDER = {
    "a module": ({}, "No module named 'jobrunner.spark.shipping'"),
    "a class": (
        {"spark/shipping": STUB, "spark/source/batch_reader": ""},
        "Can't get attribute 'FilteringReader' on <module 'jobrunner.spark.source.batch_reader'",
    ),
    "a name in a module": (
        {"spark/shipping": "from jobrunner.errors import Newer"}, "cannot import name 'Newer' from 'jobrunner.errors'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lack", OLDER)
def test_an_executor_with_an_older_package_is_to_be_updated(tmp_path, lack):
    """Not shipped to, as where Spark takes no package."""
    files, said = OLDER[lack]
    (tmp_path / "jobrunner" / "spark" / "source").mkdir(parents=True)
    for name in ("__init__", "errors", "spark/__init__", "spark/source/__init__", *files):
        (tmp_path / "jobrunner" / f"{name}.py").write_text(files.get(name, ""))
    reader = FilteringReader(batch_options({"queue": "orders"}), shape_of(StructType([])))
    ran = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"],
        input=cloudpickle.dumps(reader), capture_output=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    line = error_line(SparkTaskError(ran.stderr.decode()))
    assert line.startswith(f"ImportError: executors cannot import jobrunner: {said}")
    assert f"{tmp_path}/jobrunner/__init__.py" in line
    assert 'update "jobrunner-queue[spark]" there' in line
    assert "install" not in line
    assert is_never_of_items(SparkTaskError(ran.stderr.decode()))


def test_an_attribute_that_a_module_of_the_user_lacks_is_not_ours(tmp_path):
    (tmp_path / "myapp.py").write_text("def parse(row): return row")
    sys.path.insert(0, str(tmp_path))
    try:
        import myapp  # type: ignore[import-not-found]

        pickled = cloudpickle.dumps(Shipped(myapp.parse))
        del myapp.parse
        with pytest.raises(AttributeError, match="Can't get attribute 'parse'"):
            pickle.loads(pickled)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("myapp", None)


def test_each_function_for_executors_is_sent_so_that_they_can_say_what_they_lack():
    bare = []
    for path in Path(shipping.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        sent_names = {
            target.id for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_shipped(node.value)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("mapInArrow", "mapInPandas"):
                first = node.args[0]
                if not _is_shipped(first) and getattr(first, "id", "") not in sent_names:
                    bare.append(f"{path.name}:{node.lineno}")
    assert bare == []


def _is_shipped(node):
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Shipped"


class Conf:
    def __init__(self, refusal=None, **settings):
        self.settings, self.refusal = settings, refusal

    def get(self, name, *default):
        return self.settings.get(name, *default) if default else self.settings[name]

    def set(self, name, value):
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.settings[name] = value


def test_a_setting_that_spark_refuses_is_a_warning_that_names_it():
    spark = SimpleNamespace(conf=Conf('[CANNOT_MODIFY_CONFIG] Cannot modify "spark.driver.memory".\nSee also …'))
    with capture_logs() as logs:
        assert not set_conf(spark, "spark.driver.memory", "4g")
    (line,) = logs
    assert line["log_level"] == "warning"
    assert (line["setting"], line["value"]) == ("spark.driver.memory", "4g")
    assert line["error"] == '[CANNOT_MODIFY_CONFIG] Cannot modify "spark.driver.memory".'
    with capture_logs() as logs:
        same = SimpleNamespace(conf=Conf("[CANNOT_MODIFY_CONFIG]", **{"spark.driver.memory": "4g"}))
        assert not set_conf(same, "spark.driver.memory", "4g")
    assert not logs, "it has that value"


def test_a_value_that_spark_does_not_understand_is_an_error():
    spark = SimpleNamespace(conf=Conf("[INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'abc' …"))
    with pytest.raises(InvalidOption, match=r"spark\.sql\.shuffle\.partitions='abc' is refused by Spark: \[INVALID"):
        set_conf(spark, "spark.sql.shuffle.partitions", "abc")


def test_a_value_that_the_session_was_made_with_is_named_though_another_setting_is_being_set():
    """Spark reads all settings of SQL, and only when it needs one."""
    line = '[INVALID_CONF_VALUE] The value \'abc\' in the config "spark.sql.shuffle.partitions" is invalid.'
    with pytest.raises(InvalidOption, match=r"^spark\.sql\.shuffle\.partitions='abc' is refused by Spark: \[INVALID"):
        set_conf(SimpleNamespace(conf=Conf(line)), "spark.sql.python.filterPushdown.enabled", "true")


SHIPPING = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from jobrunner.spark.shipping import ship_package

def take(path, pyfile):
    assert Path(path).stat().st_size
    if not os.fork():
        sys.exit()
    os.wait()
    assert Path(path).exists(), "the fork has removed it"
    print(path)

conf = SimpleNamespace(get=lambda *_: "spark://host:7077")
ship_package(SimpleNamespace(conf=conf, session_id="a", addArtifacts=take))
"""


def test_the_archive_of_the_package_is_removed_when_the_process_ends(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", SHIPPING], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip().endswith("/jobrunner.zip"), ran.stdout + ran.stderr
    assert ran.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_takes_no_files_is_a_warning(monkeypatch):
    sent_files = []

    def refuse(path, *, pyfile):
        sent_files.append((path, pyfile))
        raise RuntimeError("artifacts are disabled")

    monkeypatch.setattr(shipping, "_shipped", set())
    spark = SimpleNamespace(conf=Conf(), session_id="abc", addArtifacts=refuse)
    with capture_logs() as logs:
        ship_package(spark)
        ship_package(spark)
    assert len(sent_files) == len(logs) == 1
    assert logs[0]["error"] == "artifacts are disabled"
    ship_package(SimpleNamespace(conf=Conf(**{"spark.master": "local[2]"}), session_id="b", addArtifacts=refuse))
    assert len(sent_files) == 1
