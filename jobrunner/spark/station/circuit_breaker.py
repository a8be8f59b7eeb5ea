"""A pause that grows while everything fails: then it is not the items, and halving them to death helps nobody."""

_PATIENT_WITH = 5
"""Failures in a row that a few bad items make among many good ones, as halves that go well come between."""
_FIRST_S = 1.0
_LONGEST_S = 60.0


class CircuitBreaker:
    """Counts failures in a row; the first `patient_with` of them cost no pause."""

    def __init__(self, patient_with: int = _PATIENT_WITH) -> None:
        self.in_a_row = 0
        self._patient_with = patient_with

    def succeeded(self) -> None:
        """Something went well."""
        self.in_a_row = 0

    def failed(self) -> float:
        """Something failed. Returns the seconds to wait before the next attempt: 0 for the first few."""
        self.in_a_row += 1
        beyond = self.in_a_row - self._patient_with
        return 0.0 if beyond <= 0 else min(_FIRST_S * 2.0 ** min(beyond - 1, 10), _LONGEST_S)
