"""Operations without a kernel on the cores, which run on the CPU or are refused."""
