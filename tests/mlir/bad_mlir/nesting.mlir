module {
  func.func @f() {
    %c = arith.constant 1 : index
    scf.for %i0 = %c to %c step %c {
    scf.for %i1 = %c to %c step %c {
    scf.for %i2 = %c to %c step %c {
    scf.for %i3 = %c to %c step %c {
    scf.for %i4 = %c to %c step %c {
    scf.for %i5 = %c to %c step %c {
    scf.for %i6 = %c to %c step %c {
    scf.for %i7 = %c to %c step %c {
    scf.for %i8 = %c to %c step %c {
    scf.for %i9 = %c to %c step %c {
    scf.for %i10 = %c to %c step %c {
    scf.for %i11 = %c to %c step %c {
    scf.for %i12 = %c to %c step %c {
    scf.for %i13 = %c to %c step %c {
    scf.for %i14 = %c to %c step %c {
    scf.for %i15 = %c to %c step %c {
    scf.for %i16 = %c to %c step %c {
    scf.for %i17 = %c to %c step %c {
    scf.for %i18 = %c to %c step %c {
    scf.for %i19 = %c to %c step %c {
    scf.for %i20 = %c to %c step %c {
    scf.for %i21 = %c to %c step %c {
    scf.for %i22 = %c to %c step %c {
    scf.for %i23 = %c to %c step %c {
    scf.for %i24 = %c to %c step %c {
    scf.for %i25 = %c to %c step %c {
    scf.for %i26 = %c to %c step %c {
    scf.for %i27 = %c to %c step %c {
    scf.for %i28 = %c to %c step %c {
    scf.for %i29 = %c to %c step %c {
    scf.for %i30 = %c to %c step %c {
    scf.for %i31 = %c to %c step %c {
    scf.for %i32 = %c to %c step %c {
    scf.for %i33 = %c to %c step %c {
    scf.for %i34 = %c to %c step %c {
    scf.for %i35 = %c to %c step %c {
    scf.for %i36 = %c to %c step %c {
    scf.for %i37 = %c to %c step %c {
    scf.for %i38 = %c to %c step %c {
    scf.for %i39 = %c to %c step %c {
    scf.for %i40 = %c to %c step %c {
    scf.for %i41 = %c to %c step %c {
    scf.for %i42 = %c to %c step %c {
    scf.for %i43 = %c to %c step %c {
    scf.for %i44 = %c to %c step %c {
    scf.for %i45 = %c to %c step %c {
    scf.for %i46 = %c to %c step %c {
    scf.for %i47 = %c to %c step %c {
    scf.for %i48 = %c to %c step %c {
    scf.for %i49 = %c to %c step %c {
    scf.for %i50 = %c to %c step %c {
    scf.for %i51 = %c to %c step %c {
    scf.for %i52 = %c to %c step %c {
    scf.for %i53 = %c to %c step %c {
    scf.for %i54 = %c to %c step %c {
    scf.for %i55 = %c to %c step %c {
    scf.for %i56 = %c to %c step %c {
    scf.for %i57 = %c to %c step %c {
    scf.for %i58 = %c to %c step %c {
    scf.for %i59 = %c to %c step %c {
    scf.for %i60 = %c to %c step %c {
    scf.for %i61 = %c to %c step %c {
    scf.for %i62 = %c to %c step %c {
    scf.for %i63 = %c to %c step %c {
    scf.for %i64 = %c to %c step %c {
    scf.for %i65 = %c to %c step %c {
    scf.for %i66 = %c to %c step %c {
    scf.for %i67 = %c to %c step %c {
    scf.for %i68 = %c to %c step %c {
    scf.for %i69 = %c to %c step %c {
    scf.for %i70 = %c to %c step %c {
    scf.for %i71 = %c to %c step %c {
    scf.for %i72 = %c to %c step %c {
    scf.for %i73 = %c to %c step %c {
    scf.for %i74 = %c to %c step %c {
    scf.for %i75 = %c to %c step %c {
    scf.for %i76 = %c to %c step %c {
    scf.for %i77 = %c to %c step %c {
    scf.for %i78 = %c to %c step %c {
    scf.for %i79 = %c to %c step %c {
    scf.for %i80 = %c to %c step %c {
    scf.for %i81 = %c to %c step %c {
    scf.for %i82 = %c to %c step %c {
    scf.for %i83 = %c to %c step %c {
    scf.for %i84 = %c to %c step %c {
    scf.for %i85 = %c to %c step %c {
    scf.for %i86 = %c to %c step %c {
    scf.for %i87 = %c to %c step %c {
    scf.for %i88 = %c to %c step %c {
    scf.for %i89 = %c to %c step %c {
    scf.for %i90 = %c to %c step %c {
    scf.for %i91 = %c to %c step %c {
    scf.for %i92 = %c to %c step %c {
    scf.for %i93 = %c to %c step %c {
    scf.for %i94 = %c to %c step %c {
    scf.for %i95 = %c to %c step %c {
    scf.for %i96 = %c to %c step %c {
    scf.for %i97 = %c to %c step %c {
    scf.for %i98 = %c to %c step %c {
    scf.for %i99 = %c to %c step %c {
    scf.for %i100 = %c to %c step %c {
    scf.for %i101 = %c to %c step %c {
    scf.for %i102 = %c to %c step %c {
    scf.for %i103 = %c to %c step %c {
    scf.for %i104 = %c to %c step %c {
    scf.for %i105 = %c to %c step %c {
    scf.for %i106 = %c to %c step %c {
    scf.for %i107 = %c to %c step %c {
    scf.for %i108 = %c to %c step %c {
    scf.for %i109 = %c to %c step %c {
    scf.for %i110 = %c to %c step %c {
    scf.for %i111 = %c to %c step %c {
    scf.for %i112 = %c to %c step %c {
    scf.for %i113 = %c to %c step %c {
    scf.for %i114 = %c to %c step %c {
    scf.for %i115 = %c to %c step %c {
    scf.for %i116 = %c to %c step %c {
    scf.for %i117 = %c to %c step %c {
    scf.for %i118 = %c to %c step %c {
    scf.for %i119 = %c to %c step %c {
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    }
    return
  }
}
