"""Operations without a kernel on the cores: run on the CPU, or refused."""
