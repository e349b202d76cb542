"""Jobs on one machine: sites in network namespaces with a wide-area network between them, or ranks on loopback."""
