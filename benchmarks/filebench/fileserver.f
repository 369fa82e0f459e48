# SPDX-License-Identifier: Apache-2.0
# fileserver: home directories on a file server: whole files are written, appended to, read and deleted.
# Made from personalities.toml by make.py; change it there.

set $dir=/tmp
set $nfiles=10000
set $nthreads=50
set $size_bigfileset=cvar(type=cvar-gamma,parameters=mean:131072;gamma:1.5)

define fileset name=bigfileset,path=$dir,size=$size_bigfileset,entries=$nfiles,dirwidth=20,prealloc=80

define process name=fileserver,instances=1
{
  thread name=fileserverthread,memsize=10m,instances=$nthreads
  {
    flowop createfile name=createfile1,filesetname=bigfileset,fd=1
    flowop writewholefile name=writewholefile2,srcfd=1,fd=1,iosize=1048576
    flowop closefile name=closefile3,fd=1
    flowop openfile name=openfile4,filesetname=bigfileset,fd=1
    flowop appendfilerand name=appendfilerand5,fd=1,iosize=16384
    flowop closefile name=closefile6,fd=1
    flowop openfile name=openfile7,filesetname=bigfileset,fd=1
    flowop readwholefile name=readwholefile8,fd=1,iosize=1048576
    flowop closefile name=closefile9,fd=1
    flowop deletefile name=deletefile10,filesetname=bigfileset
    flowop statfile name=statfile11,filesetname=bigfileset
  }
}

run 60
