"""Files at a facility that offers the IRI Facility API."""
