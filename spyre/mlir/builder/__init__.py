"""Operations and whole bundles made from Python descriptions."""
