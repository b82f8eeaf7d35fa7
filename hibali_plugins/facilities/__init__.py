"""Facilities whose files and jobs a REST service serves: UNICORE, FirecREST and the IRI Facility API."""
