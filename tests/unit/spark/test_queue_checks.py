"""A read that would return no row is refused when it is planned."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from jobrunner.client.item import Item
from jobrunner.errors import InvalidOption
from jobrunner.spark.source.batch_reader import BatchReader
from jobrunner.spark.source.options import batch_options, shape_of

IDS = StructType([StructField("_id", StringType())])


@pytest.fixture
def rows(server, keys):
    """rows(history="mail"): the number of rows of a batch read."""

    def count(**options):
        given = {"url": server.url, "prefix": keys.prefix, "columns": "_id"} | options
        reader = BatchReader(batch_options(given), shape_of(IDS))
        return sum(batch.num_rows for piece in reader.partitions() for batch in reader.read(piece))

    return count


def end(queue, count):
    queue.push_many([Item(n, partition=f"key {n}") for n in range(count)])
    while leases := queue.reserve(count):  # of one shard after the other
        for lease in leases:
            lease.commit()


def test_history_of_a_queue_that_keeps_none_is_an_error(client, rows):
    """A read returned no rows, without a word; a stream was refused."""
    mail = client.queue("mail")
    end(mail, 2)
    with pytest.raises(InvalidOption, match=r"queue 'mail' keeps no history, so no row would come: .* reads nothing"):
        rows(history="mail")
    assert rows(history="mail", missingQueues="ignore") == 0
    assert rows(history="m*") == 0, "a pattern may match such queues"
    assert rows(queue="mail", state="dead") == 0
    mail.configure(history_max=50)
    assert rows(history="mail") == 0, "nothing has finished since"


@pytest.mark.parametrize("partitions", [1, 3])
def test_history_that_is_kept_no_longer_is_read_as_long_as_it_is_there(client, rows, partitions):
    mail = client.queue("mail")
    mail.configure(history_max=50, partitions=partitions)
    end(mail, 6)
    mail.configure(history_max=None)
    assert rows(history="mail") == 6
