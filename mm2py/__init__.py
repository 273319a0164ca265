"""Framework of mm2py: configuration, protocol, clients, mirror state, runtime. Starts no process."""
