# cmake -DIN=file -DOUT=file.c -DNAME=symbol -P BraidEmbed.cmake: a C source with the bytes of IN as
# `const unsigned char NAME[]` and their number as `const size_t NAME_bytes`.
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" n)
math(EXPR n "${n} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_bytes;
const unsigned char ${NAME}[] = {\n${bytes}\n};
const size_t ${NAME}_bytes = ${n};
")
