"""The bundled example: a program with clear phases to try memsampd on."""
