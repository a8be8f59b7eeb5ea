"""Operations without I/O, one module per kind of object: written once, run by the blocking and the asyncio client."""
