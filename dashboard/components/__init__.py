"""What pages are built from: headers, states, tables, code, badges, grids and drawings."""
