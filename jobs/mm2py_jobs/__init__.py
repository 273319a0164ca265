"""Everything with a plan, a claim and a report: copies, verify, archives, failovers; nothing
imports it but its own commands and routes, and kinds of job of other packages."""
