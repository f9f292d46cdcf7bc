"""Stage 2 of 7: config → FABRIC → share. Takes Settings, gives FabricReport."""
