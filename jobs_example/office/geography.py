"""The distance between two airports."""

from math import asin, cos, radians, sin, sqrt

from jobs_example.dataset import Airport

EARTH_RADIUS_KM = 6371.0088
"""The mean radius of the IUGG."""
KM_PER_MILE = 1.609344


def great_circle_km(start: Airport, end: Airport) -> float:
    """The shortest way over the ground in kilometres, on a sphere: the haversine formula (Sinnott, 1984)."""
    lat1, lat2 = radians(start.latitude), radians(end.latitude)
    d_lat, d_lon = lat2 - lat1, radians(end.longitude - start.longitude)
    half_chord = sin(d_lat / 2) ** 2 + cos(lat1) * cos(lat2) * sin(d_lon / 2) ** 2
    return 2 * EARTH_RADIUS_KM * asin(sqrt(half_chord))
