"""Whether all is well: schedules, data, sites and runs on one page, for somebody who has ten seconds."""
