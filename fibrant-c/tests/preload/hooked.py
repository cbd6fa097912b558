# Whose functions a program gets: prints the file that defines each, as the dynamic linker says.
import ctypes
import os


class Found(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


everything = ctypes.CDLL(None)
for name in ["read", "poll", "pthread_mutex_lock", "getaddrinfo", "malloc"]:
    found = Found()
    assert everything.dladdr(ctypes.cast(everything[name], ctypes.c_void_p), ctypes.byref(found))
    print(name, os.path.basename(found.file.decode()))
