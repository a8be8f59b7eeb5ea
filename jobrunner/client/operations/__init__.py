"""Operations without I/O, one file per noun: written once, run by the blocking and by the asyncio client."""
