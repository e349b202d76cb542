"""What befalls a simulated run."""

FAULTS = {
    "agent": 3.0,
    "ranks": 2.0,
    "machine": 3.0,
    "line": 3.0,
    "one way": 1.0,
    "uplink": 2.0,
    "slow": 1.0,
    "mail": 0.7,
    "full": 0.7,
    "disk": 1.0,
    "all": 0.3,
    "frames": 0.3,
    "hub": 0.7,
    "minority": 0.7,
    "litter": 0.5,
    "removal": 0.3,
    "strange frame": 0.3,
}
"""How often each comes, beside the others. `machine`: it ends, and comes back. `line`: two sites are cut from each
other; `uplink`: one from all. `slow`: all lines of a site take a second or two longer, and files come slowly. `mail`:
no frame comes to or from its ranks by mail. `full`: its disk takes no frames and states, or nothing at all. `disk`: a
machine ends and its disk is lost. `all`: all machines end at once; `frames`: and all frames are lost, but no states.
`hub`: the leader's machine is lost, for good or until another leads, or is cut off from all meanwhile; and a person
promotes another site. `minority`: so many machines end that a site which had been cut off is left, and a person
promotes it. `litter`: what is no snapshot lies beside them, and a manifest cannot be read. `removal`: a person removes
the site that leads. `strange frame`: somebody asks the leader for frames that were never made."""

OF_ETCD = {
    "etcd away": 1.0,
    "etcd line": 2.0,
    "etcd doubt": 2.0,
    "etcd backup": 1.0,
    "leader": 2.0,
}
"""Where etcd says who leads, beside the others but those of BY_HAND. `etcd away`: nobody reaches it; `line`: one
machine does not; `doubt`: answers are lost, of what was done, is done later, or never; `backup`: it is restored from
one, and a person starts the site that has the most entries with --lead. `leader`: its machine ends, or is cut from the
others and perhaps from etcd, and comes back."""
BY_HAND = {"hub", "minority", "removal"}
"""A person says who leads."""

LASTING = {"": 8.0, "phantom": 1.0, "restless": 1.0, "headless": 1.0, "alone": 1.0}
"""What goes on when all else is over. `phantom`: a site's lines to the leader break after each Hello. `restless`: the
leader's agent ends before a snapshot is due, again and again. `headless`: the leader's machine is away for a while.
`alone`: the leader is cut off from all and goes on, another site is promoted, and they meet once that one has let go of
the entries of before."""
LASTING_WITH_ETCD = {"": 8.0, "phantom": 1.0, "restless": 1.0}
